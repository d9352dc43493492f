"""The process that chats, answers a batch or evaluates: a verb starts it on its device, its task in a variable."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from npukit.inference.loading import Wanted

VARIABLE = "NPUKIT_TASK"


@dataclass(frozen=True)
class Task:
    """What a process is started for; a batch has data and an output, a chat has neither."""

    kind: Literal["chat", "infer", "eval"]
    wanted: Wanted
    data: tuple[str, ...] = ()
    output: Path | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    seed: int = 0
    longest: int | None = None
    rows: int = 256
    data_folder: Path = Path("data")
    json: bool = False


def environment(task: Task) -> dict[str, str]:
    """The variable that tells a process its task."""
    return {VARIABLE: json.dumps(asdict(task), default=str)}


def main() -> None:
    """Do the task of this process. What the user can fix is told by npukit.launch.script."""
    from pydantic import TypeAdapter

    task = TypeAdapter(Task).validate_json(os.environ.pop(VARIABLE))
    {"chat": _chat, "infer": _infer, "eval": _evaluate}[task.kind](task)


def _chat(task: Task) -> None:
    from npukit.inference.chat import Conversation
    from npukit.inference.engine import Engine, EngineOptions
    from npukit.inference.loading import load
    from npukit.inference.terminal import talk

    loaded = load(task.wanted)
    engine = Engine(loaded.model, EngineOptions(longest=task.longest, rows=1))
    sampling = replace(loaded.defaults, **{"seed": task.seed, **task.sampling})
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    with_adapters = f" with {', '.join(map(str, loaded.adapters))}" if loaded.adapters else ""
    greeting = f"{loaded.folder}{with_adapters}, {dtype} on {device_name(loaded.model.device)}"
    talk(Conversation(loaded, engine, sampling, task.stops), greeting)


def _infer(task: Task) -> None:
    from npukit.inference.batch import BatchOptions, infer
    from npukit.inference.show import row_progress, show_inferred

    assert task.output is not None
    options = BatchOptions(
        task.wanted,
        task.data,
        task.output,
        task.sampling,
        task.stops,
        task.seed,
        task.longest,
        task.rows,
        task.data_folder,
    )
    with row_progress() as told:
        done = infer(options, told)
    if done is not None:
        show_inferred(done, task.json)


def _evaluate(task: Task) -> None:
    from npukit.inference.evaluate import evaluate
    from npukit.inference.show import row_progress, show_evaluated

    with row_progress() as told:
        done = evaluate(task.wanted, task.data, longest=task.longest, rows=task.rows, told=told)
    show_evaluated(done, task.json)


def device_name(device: Any) -> str:
    """A device as people call it; a simulated NPU is called one."""
    from npukit.launch.devices import is_simulated

    if device.type == "cpu":
        return "the CPU"
    return f"{'a simulated ' if is_simulated() else ''}{device}"


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("npukit: interrupted", file=sys.stderr)
        sys.exit(130)
