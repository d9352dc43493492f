"""The process that runs a scheduler: `python -m npukit.rl.turns.worker`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from npukit.rl.turns.calling import TurnScheduler, find_scheduler
from npukit.rl.turns.tools import ToolScheduler, find_tools
from npukit.rl.turns.turn import Messages, RolloutConversation, Turn, TurnReply, plain, sentence
from npukit.rl.workers import serve


class LazyTokenizer:
    """A tokenizer that is loaded on first use: this takes seconds, and not every scheduler needs it."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __getattr__(self, name: str) -> Any:
        self.__dict__["_loaded"] = loaded = self.__dict__.get("_loaded") or pickle.loads(self._pickled)
        return getattr(loaded, name)


def begin(asked: Any) -> tuple[None, Callable[[Any], Any]]:
    """Load the scheduler. The worker then answers requests with the name of a method and its argument."""
    options, files, syntax, pickled = asked
    tokenizer = LazyTokenizer(pickled)
    scheduler: TurnScheduler
    if options.has_tools:
        tools, environment = find_tools(options.tools, options.environment_factory, files, options.use_gym_env)
        scheduler = ToolScheduler(tools, environment, syntax, lambda ids: str(tokenizer.decode(ids)))
    else:
        scheduler = find_scheduler(options.multi_turn_scheduler, files, options.max_turns, options.gym_env, tokenizer)
    methods: dict[str, Callable[[Any], Any]] = {"begin": partial(_begun, scheduler), "next": partial(_next, scheduler)}
    return None, lambda request: methods[request[0]](request[1])


def _begun(scheduler: TurnScheduler, conversations: Sequence[RolloutConversation]) -> list[Messages | str]:
    return [_value_or_problem(plain, begun) for begun in scheduler.begin(conversations)]


def _next(scheduler: TurnScheduler, turns: Sequence[Turn]) -> list[TurnReply]:
    replies = (_value_or_problem(_plain, reply) for reply in scheduler.next(turns))
    return [TurnReply(problem=reply) if isinstance(reply, str) else reply for reply in replies]


def _plain(reply: TurnReply) -> TurnReply:
    return replace(reply, messages=plain(reply.messages), infos=plain(reply.infos))


def _value_or_problem(made: Callable[[Any], Any], value: Any) -> Any:
    """The result of converting a value, or why that is impossible."""
    try:
        return made(value)
    except (TypeError, ValueError, RecursionError) as error:
        return sentence(error)


if __name__ == "__main__":
    serve(begin)
