"""Read what the simulated runtime logged while the profiler was on (cann/runtime/profiler.c)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAMEL = {"AlltoAll": "alltoall", "AlltoAllV": "alltoallv", "SendRecv": "batchSendRecv"}


@dataclass(frozen=True)
class ProfiledCall:
    """A call from the host to CANN. Times are nanoseconds since 1970, as in all files of the profiler."""

    name: str
    thread: int
    start: int
    end: int


@dataclass(frozen=True)
class ProfiledTask:
    """One task on a stream of a device, and the time at which the host submitted it."""

    kind: str  # kernel, copy or collective
    name: str
    type: str
    core: str  # AI_CORE, AI_VECTOR_CORE, MEMCPY_ASYNC or COMMUNICATION
    device: int
    stream: int
    thread: int
    issued: int
    start: int
    end: int
    fields: dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """Everything that one process recorded, in order of time."""

    pid: int
    tasks: list[ProfiledTask]
    calls: list[ProfiledCall]

    @property
    def devices(self) -> list[int]:
        return sorted({task.device for task in self.tasks})


def read_recording(folder: Path, vector_cores: bool) -> Recording:
    """Read a PROF_ folder. `vector_cores` says whether the card has separate vector cores.

    >>> read_recording(Path("host_7_ascend_pt/PROF_000001_20261116044500000_SIMULATED7"), vector_cores=True).devices
    [0]
    """
    began = ast.literal_eval((folder / "host" / "start_info").read_text())
    shift = int(began["collectionTimeBegin"]) * 1000 - int(began["clockMonotonicRaw"])
    tasks: list[ProfiledTask] = []
    calls: list[ProfiledCall] = []
    counts: dict[str, int] = {}
    for line in _lines(folder / "host" / "simulated.jsonl"):
        for moment in ("issued", "start", "end"):
            if moment in line:
                line[moment] += shift
        if line["kind"] == "call":
            calls.append(ProfiledCall(line["name"], line["thread"], line["start"], line["end"]))
        else:
            tasks.append(_task(line, counts, vector_cores))
    pid = re.search(r"(\d+)$", folder.name)
    return Recording(
        int(pid[1]) if pid else 0,
        sorted(tasks, key=lambda task: task.start),
        sorted(calls, key=lambda call: call.start),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines. A killed process may leave a partial one."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            if text.endswith("}\n"):
                yield json.loads(text)


def _task(line: dict[str, Any], counts: dict[str, int], vector_cores: bool) -> ProfiledTask:
    kind, name = line.pop("kind"), line.pop("name")
    core, kernel_type = "MEMCPY_ASYNC", name
    if kind == "kernel":
        core = "AI_CORE" if line["product"] or not vector_cores else "AI_VECTOR_CORE"
        kernel_type = name.rpartition("::")[2]
    elif kind == "collective":
        core = "COMMUNICATION"
        kernel_type = f"hcom_{CAMEL.get(name, name[0].lower() + name[1:])}_"
        group = line["group"]
        number = counts[group] = counts.get(group, -1) + 1
        name = f"{kernel_type}_{sum(group.encode()) % 1000:03d}_{number}_1"
    where = {key: line.pop(key) for key in ("device", "stream", "thread", "issued", "start", "end")}
    return ProfiledTask(kind, name, kernel_type, core, fields=line, **where)
