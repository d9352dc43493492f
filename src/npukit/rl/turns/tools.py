"""Tools that the model calls, written as for TRL: functions, or the methods of an environment.

A tool's name and parameters are read from its signature and docstring, and presented to the model by its chat template.
The results of all calls in an answer follow it; an answer without a call is the last one.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.chat.answer import END_OF_THINK, AnswerParser, Syntax, ToolCall, whole
from npukit.llm.config.nearest import nearest
from npukit.rl.plugins import accepted, run_file
from npukit.rl.turns.turn import Messages, RolloutConversation, Turn, TurnReply, sentence

Tool = Callable[..., Any]


@dataclass
class ToolUse:
    """A conversation in progress: which tools it has, and which were called."""

    tools: dict[str, Tool]
    environment: Any = None
    calls: int = 0
    failures: int = 0


@dataclass
class ToolScheduler:
    """Runs the tools that the model calls. `make_environment` creates an environment for each conversation; `decode`
    turns tokens into text, including special ones.
    """

    tools: dict[str, Tool]
    make_environment: Callable[[], Any] | None
    syntax: Syntax
    decode: Callable[[list[int]], str]
    _open: dict[str, ToolUse] = field(default_factory=dict)

    def begin(self, conversations: Sequence[RolloutConversation]) -> list[Messages | str]:
        """List the tools first; an environment's reset message comes after the last message."""
        self._open = {}
        return asyncio.run(_all(self._begin(conversation) for conversation in conversations))

    async def _begin(self, conversation: RolloutConversation) -> Messages | str:
        messages, use = [dict(message) for message in conversation.messages], ToolUse(dict(self.tools))
        try:
            if self.make_environment:
                use.environment = self.make_environment()
                use.tools |= methods_of(use.environment)
                reset = use.environment.reset
                seen = await _awaited(reset(**accepted(reset, {**conversation.columns, "prompt": messages})))
                messages[-1]["content"] += seen if isinstance(seen, str) else ""
            offered = json.dumps(list(map(schema_of, use.tools.values())), ensure_ascii=False)
        except Exception as error:
            return sentence(error)
        self._open[conversation.uuid] = use
        return [{"role": "tools", "content": offered}, *messages]

    def next(self, turns: Sequence[Turn]) -> list[TurnReply]:
        """How each conversation continues. Async tools run concurrently."""
        return asyncio.run(_all(map(self._next, turns)))

    async def _next(self, turn: Turn) -> TurnReply:
        if (use := self._open.get(turn.uuid)) is None:
            return TurnReply()
        try:
            calls = [] if turn.is_last else self._calls(turn)
            results = [await _result(call, use) for call in calls]
            infos: dict[str, Any] = {"tool_calls": use.calls, "tool_failures": use.failures}
            if not results and hasattr(use.environment, "get_reward"):
                reward = await _awaited(use.environment.get_reward())
                infos["total_reward"] = None if reward is None else float(reward)
        except Exception as error:
            return TurnReply(problem=sentence(error))
        return TurnReply(goes_on=bool(results), messages=results, infos=infos)

    def _calls(self, turn: Turn) -> tuple[ToolCall, ...]:
        """The calls in an answer, outside its reasoning."""
        parser = AnswerParser(thinks=False, syntax=self.syntax)
        text = self.decode(turn.ids).rpartition(END_OF_THINK)[2]
        return whole([*parser.feed(text), *parser.end()]).calls


async def _result(call: ToolCall, use: ToolUse) -> dict[str, Any]:
    """The result of a tool as text. An exception is reported to the model."""
    use.calls += 1
    try:
        if call.name not in use.tools:
            raise ValueError(f"Tool {call.name} not found.")
        returned = await _awaited(use.tools[call.name](**json.loads(call.arguments)))
    except Exception as error:
        use.failures += 1
        returned = {"error": str(error)}
    return {"role": "tool", "name": call.name, "content": str(returned)}


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _all(made: Any) -> list[Any]:
    return list(await asyncio.gather(*made))


def find_tools(
    names: Sequence[str], environment: str | None, files: Sequence[Path], rewards: bool = False
) -> tuple[dict[str, Tool], Callable[[], Any] | None]:
    """The functions and the environment with these names in some files; `rewards` says whether it must have rewards."""
    known: dict[str, Any] = {}
    for file in files:
        known |= {name: made for name, made in vars(run_file(file)).items() if callable(made)}
    for option, wanted in (*(("grpo.tools", name) for name in names), ("grpo.environment_factory", environment)):
        if wanted is not None and wanted not in known:
            near = nearest(wanted, known)
            hint = f"did you mean {near}?" if near else "define it there."
            raise NpukitError(f"{option}: there is no {wanted} in the files of rewards.plugins: {hint}")
    tools = {name: known[name] for name in names}
    make = known[environment] if environment else None
    try:
        made = make() if make else None
    except Exception as error:
        raise NpukitError(f"grpo.environment_factory: {environment} cannot be made: {sentence(error)}") from error
    try:
        for tool in (*tools.values(), *methods_of(made).values()):
            schema_of(tool)
    except Exception as error:
        raise NpukitError(f"grpo.tools: a tool cannot be described: {sentence(error)}") from error
    for method in ("reset", "get_reward") if rewards else ("reset",):
        if make and not callable(getattr(made, method, None)):
            raise NpukitError(f"grpo.environment_factory: {environment} has no method {method}.")
    return tools, make


def methods_of(environment: Any) -> dict[str, Tool]:
    """The methods of an environment that can be called: all public ones except reset and get_reward."""
    methods = inspect.getmembers(environment, predicate=inspect.ismethod)
    return {name: method for name, method in methods if name[0] != "_" and name not in ("reset", "get_reward")}


def schema_of(tool: Tool) -> dict[str, Any]:
    """A tool in the format of OpenAI's API, from its type hints and the Args section of its docstring."""
    from transformers.utils import get_json_schema

    schema: dict[str, Any] = get_json_schema(tool)
    return schema
