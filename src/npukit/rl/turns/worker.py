"""The process that runs a scheduler: `python -m npukit.rl.turns.worker`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from npukit.rl.turns.calling import TurnScheduler, find_scheduler
from npukit.rl.turns.tools import ToolScheduler, find_tools
from npukit.rl.workers import serve


class LazyTokenizer:
    """A tokenizer that is loaded when it is used: not every scheduler does, and it takes seconds."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __getattr__(self, name: str) -> Any:
        self.__dict__["_loaded"] = loaded = self.__dict__.get("_loaded") or pickle.loads(self._pickled)
        return getattr(loaded, name)


def begin(asked: Any) -> tuple[None, Callable[[Any], Any]]:
    """Load the scheduler; it then answers requests of the name of a method and its argument."""
    options, files, syntax, pickled = asked
    tokenizer = LazyTokenizer(pickled)
    scheduler: TurnScheduler
    if options.has_tools:
        tools, environment = find_tools(options.tools, options.environment_factory, files)
        scheduler = ToolScheduler(tools, environment, syntax, lambda ids: str(tokenizer.decode(ids)))
    else:
        scheduler = find_scheduler(options.multi_turn_scheduler, files, options.max_turns, options.gym_env, tokenizer)
    methods: dict[str, Callable[[Any], Any]] = {"begin": scheduler.begin, "next": scheduler.next}
    return None, lambda request: methods[request[0]](request[1])


if __name__ == "__main__":
    serve(begin)
