"""Call a user's scheduler and interpret whatever it returns."""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest
from npukit.packages import require
from npukit.rl import swift
from npukit.rl.plugins import accepted, functions_of, run_file
from npukit.rl.turns.openenv import OpenEnvScheduler
from npukit.rl.turns.swift_schedulers import GYMScheduler, RolloutInferRequest
from npukit.rl.turns.turn import Messages, RolloutConversation, Turn, TurnReply, sentence


class TurnScheduler(Protocol):
    """A scheduler in either form."""

    def begin(self, conversations: Sequence[RolloutConversation]) -> list[Messages | str]:
        """The messages that each conversation begins with, or why it cannot begin."""

    def next(self, turns: Sequence[Turn]) -> list[TurnReply]:
        """How each conversation continues."""


def find_scheduler(
    name: str, files: Sequence[Path], max_turns: int, gym_env: str | None, tokenizer: Any
) -> TurnScheduler:
    """The scheduler with this name: a function of `messages` in one of the files, or a class in ms-swift's form."""
    functions: dict[str, Callable[..., Any]] = {}
    swift.stand_in()
    for file in files:
        functions_of_file = functions_of(run_file(file))
        functions |= {
            name: made for name, made in functions_of_file.items() if "messages" in inspect.signature(made).parameters
        }
    classes = swift.registry("multi_turns")
    if name in functions:
        return FunctionScheduler(functions[name])
    if name not in classes:
        known = [*functions, *classes]
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}."
        raise NpukitError(f"grpo.multi_turn_scheduler: there is no scheduler {name}: {hint}")
    made = classes[name]
    if any(
        "run" in vars(kind) for kind in made.__mro__ if kind.__name__ not in ("MultiTurnScheduler", "RolloutScheduler")
    ):
        raise NpukitError(
            f"grpo.multi_turn_scheduler: {name} overrides run, which drives an engine of ms-swift's: write step and "
            "check_finished instead."
        )
    _check_environment(made, gym_env)
    try:
        return SwiftScheduler(made(None, max_turns, tokenizer=tokenizer, gym_env=gym_env))
    except Exception as error:
        raise NpukitError(f"grpo.multi_turn_scheduler: {name} cannot be made: {sentence(error)}") from error


def _check_environment(made: Any, gym_env: str | None) -> None:
    """Refuse an environment that cannot begin a conversation."""
    makes = getattr(made, "_create_env", None)
    if makes is OpenEnvScheduler._create_env:
        require("openenv")
    known = swift.registry("envs")
    if makes is GYMScheduler._create_env and gym_env is not None and gym_env not in known:
        near = nearest(gym_env, known)
        there_are = f"there are {', '.join(known)}." if known else "name one of envs in a file of rewards.plugins."
        hint = f"did you mean {near}?" if near else there_are
        raise NpukitError(f"grpo.gym_env: there is no environment {gym_env}: {hint}")


class FunctionScheduler:
    """A function that receives all messages and the columns of the row, and returns what follows: messages, the text of
    the user's next message, or nothing at the end. It may be async.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._conversations: dict[str, RolloutConversation] = {}

    def begin(self, conversations: Sequence[RolloutConversation]) -> list[Messages | str]:
        """Begin conversations as in the data."""
        self._conversations = {
            one.uuid: RolloutConversation(one.uuid, list(one.messages), one.columns) for one in conversations
        }
        return [one.messages for one in conversations]

    def next(self, turns: Sequence[Turn]) -> list[TurnReply]:
        """How each conversation continues."""
        return [TurnReply() if turn.is_last else self._next(turn) for turn in turns]

    def _next(self, turn: Turn) -> TurnReply:
        conversation = self._conversations[turn.uuid]
        conversation.messages.append({"role": "assistant", "content": turn.text})
        given = {**conversation.columns, "messages": deepcopy(conversation.messages), "turn": turn.number}
        try:
            returned = self._function(**accepted(self._function, given))
            returned = asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned
            messages = _messages(returned)
        except Exception as error:
            return TurnReply(problem=sentence(error))
        conversation.messages.extend(messages)
        return TurnReply(goes_on=bool(messages), messages=messages)


async def _awaited(returned: Any) -> Any:
    return await returned


def _messages(returned: Any) -> Messages:
    if returned is None or returned is False:
        return []
    several = [returned] if isinstance(returned, dict) else returned
    several = [{"role": "user", "content": returned}] if isinstance(returned, str) else several
    if not isinstance(several, list) or not all(_is_message(message) for message in several):
        raise ValueError(f"it returned {returned!r:.100}, which is no list of messages with role and content")
    return several


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("content"), str) and message.get("role") != "assistant"


class SwiftScheduler:
    """A class in ms-swift's form."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._loop = scheduler, asyncio.new_event_loop()
        self._requests: dict[str, Any] = {}

    def begin(self, conversations: Sequence[RolloutConversation]) -> list[Messages | str]:
        """Begin conversations. Environments may replace the data's messages."""
        requests = [RolloutInferRequest(deepcopy(one.messages), one.columns, one.uuid) for one in conversations]
        self._requests = {request.uuid: request for request in requests}
        problems = self._loop.run_until_complete(self._begun(requests))
        return [
            sentence(problem) if problem else deepcopy(request.messages)
            for request, problem in zip(requests, problems, strict=True)
        ]

    async def _begun(self, requests: list[RolloutInferRequest]) -> list[BaseException | None]:
        begin = getattr(self._scheduler, "on_trajectory_start", None)
        if begin is None:
            return [None for _ in requests]
        problems: list[Any] = await asyncio.gather(*(begin([request]) for request in requests), return_exceptions=True)
        return problems

    def next(self, turns: Sequence[Turn]) -> list[TurnReply]:
        """How each conversation continues. Environments take their steps concurrently."""
        asked = [(self._requests[turn.uuid], _choice(turn), turn) for turn in turns]
        for request, _, turn in asked:
            if request.messages[-1]["role"] == "assistant":
                request.messages[-1]["content"] += turn.text
            else:
                request.messages.append({"role": "assistant", "content": turn.text})
        ends = self._loop.run_until_complete(self._ends(asked))
        return [self._next(*turn, end) for turn, end in zip(asked, ends, strict=True)]

    async def _ends(self, asked: list[tuple[Any, Any, Turn]]) -> list[Any]:
        ended = getattr(self._scheduler, "on_turn_end", None)
        if ended is None:
            return [{} for _ in asked]
        calls = (ended(request, choice, turn.number) for request, choice, turn in asked)
        return await asyncio.gather(*calls, return_exceptions=True)

    def _next(self, request: Any, choice: Any, turn: Turn, ended: Any) -> TurnReply:
        infos: dict[str, Any] = {}
        try:
            if isinstance(ended, BaseException):
                raise ended
            infos |= ended.get("rollout_infos") or {}
            done = ended.get("done", self._scheduler.check_finished(request, choice, turn.number))
            return TurnReply(infos=infos) if done or turn.is_last else self._step(request, choice, turn, infos)
        except Exception as error:
            return TurnReply(infos=infos, problem=sentence(error))

    def _step(self, request: Any, choice: Any, turn: Turn, infos: dict[str, Any]) -> TurnReply:
        before = deepcopy(request.messages)
        returned = self._scheduler.step(request, choice, turn.number)
        if not isinstance(returned, dict) or not hasattr(returned.get("infer_request"), "messages"):
            raise ValueError(f"step returned {returned!r:.100}: it must return a dict with infer_request")
        request = self._requests[turn.uuid] = returned["infer_request"]
        messages, count = request.messages, len(before)
        if len(messages) > count and messages[-1]["role"] == "assistant" and not messages[-1]["content"]:
            messages.pop()  # a placeholder for the answer
        if messages[: count - 1] != before[:-1] or not all(map(_is_message, messages[count:])):
            raise ValueError("step changed what had been said before, or spoke for the assistant")
        ids, mask = returned.get("response_token_ids"), returned.get("response_loss_mask")
        more = ""
        if len(messages) == count and ids is None:
            more = messages[-1]["content"].removeprefix(before[-1]["content"])
            if before[-1]["content"] + more != messages[-1]["content"]:
                raise ValueError("step changed the answer: return its response_token_ids and response_loss_mask")
        infos |= returned.get("rollout_infos") or {}
        return TurnReply(True, deepcopy(messages[count:]), ids, mask, more, infos)


def _choice(turn: Turn) -> Any:
    return types.SimpleNamespace(
        index=0,
        message=types.SimpleNamespace(role="assistant", content=turn.text, tool_calls=None),
        finish_reason="length" if turn.was_cut else "stop",
        token_ids=list(turn.ids),
        logprobs={"content": [{"logprob": logprob} for logprob in turn.logprobs]},
    )
