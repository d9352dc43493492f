"""What a process is started for: to chat, to answer rows, to evaluate. Nothing here needs torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from npukit.packages import require

if TYPE_CHECKING:
    from npukit.launch.devices import Devices

VARIABLE = "NPUKIT_TASK"


@dataclass(frozen=True)
class Wanted:
    """The model that somebody wants to use.

    >>> Wanted("models/qwen2", adapters=("runs/lora",))
    """

    model: str  # a folder or a hub's name; an adapter's folder brings its base along
    adapters: tuple[str, ...] = ()  # merged into the model, one after the other
    dtype: str = "auto"
    template: str | None = None  # of chats; None: the tokenizer's own
    system: str | None = None  # for conversations without a system message
    trust_remote_code: bool = False
    allow_pickles: bool = False
    enable_thinking: bool | None = None  # None: as the template has it


@dataclass(frozen=True)
class Task:
    """What is asked of which model, and how. Rows are answered with data and an output; a chat has neither.

    >>> Task("infer", Wanted("qwen2"), ("questions.jsonl",), Path("answers.jsonl"), {"temperature": 0})
    """

    kind: Literal["chat", "infer", "eval"]
    wanted: Wanted
    data: tuple[str, ...] = ()
    output: Path | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # fields of Sampling, in place of the model's own
    stops: tuple[str, ...] = ()
    seed: int = 0
    longest: int | None = None  # tokens of a prompt with its answer
    rows: int = 256  # answers at a time
    lookup: int = 0  # tokens that are guessed from the prompt
    data_folder: Path = Path("data")
    json: bool = False


def environment(task: Task) -> dict[str, str]:
    """The variable that tells a process its task."""
    return {VARIABLE: json.dumps(asdict(task), default=str)}


def start(task: Task, devices: Devices) -> NoReturn:
    """Become the process, or the ranks, that do the task."""
    from npukit.facts.launch_settings import launch_settings
    from npukit.launch.run import run
    from npukit.llm.models.folder import check_reachable

    require("torch", "transformers", extra="use")
    check_reachable(task.wanted.model)
    settings = devices.environment()
    more = launch_settings(settings, devices.kind == "npu", 1, {})
    settings |= {each.name: each.value for each in more} | environment(task)
    run(["-m", "npukit.inference.process"], settings, ranks=devices.count)
