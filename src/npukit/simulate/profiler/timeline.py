"""msprof_*.json: the timeline as Chrome trace events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from npukit.simulate.profiler.recording import ProfiledTask, Recording
from npukit.spans import Spans, minus, union

Event = dict[str, Any]
CANN, HARDWARE, COMMUNICATION, OVERLAP = range(1, 5)
NAMES = {CANN: "CANN", HARDWARE: "Ascend Hardware", COMMUNICATION: "Communication", OVERLAP: "Overlap Analysis"}
LANES = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")


def trace_events(recording: Recording) -> list[Event]:
    """The host's calls, each device's tasks, and the overlap of its computation and communication."""
    events = list(_process(recording, CANN, 0, "CPU"))
    for call in recording.calls:
        events.append(
            _span(_pid(recording, CANN, 0), call.thread, f"AscendCL@{call.name}", call.start, call.end, level="acl")
        )
    for device in recording.devices:
        # torch_npu reads the number after "NPU". The rest tells people, and `npukit advise`, that times are simulated.
        for process in (HARDWARE, COMMUNICATION, OVERLAP):
            events += _process(recording, process, device, f"NPU {device} (simulated)")
        tasks = [task for task in recording.tasks if task.device == device]
        events += _streams(recording, device, tasks)
        for number, task in enumerate(tasks):
            events += _task(recording, task, f"{device}{number:08d}")
        events += _overlap(recording, device, tasks)
    return events


def _pid(recording: Recording, process: int, device: int) -> int:
    """A distinct number for each process in the timeline, computed as CANN computes it."""
    return recording.pid << 10 | process << 5 | device


def _process(recording: Recording, process: int, device: int, label: str) -> Iterator[Event]:
    pid = _pid(recording, process, device)
    for name, key, value in (
        ("process_name", "name", NAMES[process]),
        ("process_labels", "labels", label),
        ("process_sort_index", "sort_index", process),
    ):
        yield {"ph": "M", "name": name, "pid": pid, "tid": 0, "args": {key: value}}


def _streams(recording: Recording, device: int, tasks: Sequence[ProfiledTask]) -> Iterator[Event]:
    for stream in sorted({task.stream for task in tasks}):
        pid = _pid(recording, HARDWARE, device)
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": stream, "args": {"name": f"Stream {stream}"}}
    for lane, name in enumerate(LANES):
        pid = _pid(recording, OVERLAP, device)
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": lane, "args": {"name": name}}


def _span(pid: int, tid: int, name: str, start: int, end: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": _us(start),
        "dur": (end - start) / 1000,
        "args": args,
    }


def _us(nanoseconds: int) -> str:
    """Microseconds with nanosecond digits, which a float would lose."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _task(recording: Recording, task: ProfiledTask, connection: str) -> Iterator[Event]:
    host, device = _pid(recording, CANN, 0), _pid(recording, HARDWARE, task.device)
    yield _span(
        host, task.thread, "Node@launch", task.issued, max(task.start, task.issued), Mode="launch", level="node",
        connection_id=connection, item_id=task.name,
    )  # fmt: skip
    yield _span(
        device, task.stream, task.name, task.start, task.end,
        **{"Task Type": task.core, "Physic Stream Id": task.stream, "connection_id": connection},
    )  # fmt: skip
    if task.kind == "collective":
        yield _span(
            _pid(recording, COMMUNICATION, task.device), task.stream, task.name, task.start, task.end,
            **{"connection_id": connection, "group": task.fields["group"], "size(Byte)": task.fields["bytes"]},
        )  # fmt: skip
    flow = {"cat": "HostToDevice", "name": f"HostToDevice{connection}", "id": connection}
    yield {"ph": "s", "pid": host, "tid": task.thread, "ts": _us(task.issued), **flow}
    yield {"ph": "f", "bp": "e", "pid": device, "tid": task.stream, "ts": _us(task.start), **flow}


def _overlap(recording: Recording, device: int, tasks: Sequence[ProfiledTask]) -> Iterator[Event]:
    computing = union((task.start, task.end) for task in tasks if task.kind == "kernel")
    communicating = union((task.start, task.end) for task in tasks if task.kind == "collective")
    busy = union(computing + communicating)
    free: Spans = minus([(busy[0][0], busy[-1][1])], busy) if busy else []
    lanes = (computing, communicating, minus(communicating, computing), free)
    for lane, (name, spans) in enumerate(zip(LANES, lanes, strict=True)):
        for start, end in spans:
            yield _span(_pid(recording, OVERLAP, device), lane, name, start, end)
