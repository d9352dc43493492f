"""The process that chats, answers a batch or evaluates: a verb starts it on its device, its task in a variable."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.task import VARIABLE, Task


def main() -> None:
    """Do the task of this process. What the user can fix is told by npukit.launch.script."""
    from pydantic import TypeAdapter

    task = TypeAdapter(Task).validate_json(os.environ.pop(VARIABLE))
    {"chat": _chat, "infer": _infer, "eval": _evaluate}[task.kind](task)


def _chat(task: Task) -> None:
    from npukit.inference.chat import Conversation
    from npukit.inference.engine import EngineOptions
    from npukit.inference.loading import load, start_engine
    from npukit.inference.terminal import talk

    loaded = load(task.wanted)
    engine = start_engine(loaded, EngineOptions(longest=task.longest, rows=1, lookup=task.lookup))
    sampling = replace(loaded.defaults, **{"seed": task.seed, **task.sampling})
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    with_adapters = f" with {', '.join(map(str, loaded.adapters))}" if loaded.adapters else ""
    greeting = f"{loaded.folder}{with_adapters}, {dtype} on {device_name(loaded.model.device)}"
    talk(Conversation(loaded, engine, sampling, task.stops), greeting)


def _infer(task: Task) -> None:
    from npukit.inference.batch import infer
    from npukit.inference.show import show_inferred
    from npukit.report.progress import progress

    with progress("answering", "rows") as told:
        done = infer(task, told)
    if done is not None:
        show_inferred(done, task.json)
        if done.failed:
            raise NpukitError(
                f"{done.failed} of {done.rows} rows have no answer: their `error` in {done.output} says why.",
                on_the_way=True,
            )


def _evaluate(task: Task) -> None:
    from npukit.inference.evaluate import evaluate
    from npukit.inference.show import show_evaluated
    from npukit.report.progress import progress

    with progress("evaluating", "rows") as told:
        done = evaluate(task.wanted, task.data, longest=task.longest, rows=task.rows, told=told)
    show_evaluated(done, task.json)


def device_name(device: Any) -> str:
    """A device as people call it; a simulated NPU is called one."""
    from npukit.launch.devices import is_simulated

    if device.type == "cpu":
        return "the CPU"
    return f"{'a simulated ' if is_simulated() else ''}{device}"


if __name__ == "__main__":
    main()
