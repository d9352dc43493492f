"""The tables that `msprof` exports as CSV files."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from npukit.simulate.profiler.recording import ProfiledTask, Recording

Row = dict[str, Any]
TYPES = {
    "Float": "FLOAT",
    "Half": "FLOAT16",
    "BFloat16": "DT_BF16",
    "Double": "DOUBLE",
    "Long": "INT64",
    "Int": "INT32",
    "Short": "INT16",
    "Char": "INT8",
    "Byte": "UINT8",
}
STATE = "simulated"  # instead of "dynamic" or "static", since this is the only free column of a kernel


def op_summary(recording: Recording) -> list[Row]:
    """One row per kernel and collective."""
    rows = []
    ended: dict[tuple[int, int], int] = {}
    for number, task in enumerate(task for task in recording.tasks if task.kind != "copy"):
        stream = (task.device, task.stream)
        waited = task.start - ended.get(stream, task.start)
        ended[stream] = task.end
        rows.append(_summary(task, number, max(0, waited)))
    return rows


def _summary(task: ProfiledTask, number: int, waited: int) -> Row:
    inputs, outputs = task.fields.get("inputs", []), task.fields.get("outputs", [])
    return {
        "Device_id": task.device,
        "Model ID": 4294967295,
        "Task ID": number,
        "Stream ID": task.stream,
        "Op Name": task.name,
        "OP Type": task.type,
        "OP State": STATE,
        "Task Type": task.core,
        "Task Start Time(us)": f"{task.start // 1000}.{task.start % 1000:03d}\t",
        "Task Duration(us)": (task.end - task.start) / 1000,
        "Task Wait Time(us)": waited / 1000,
        "Block Dim": 0,  # the column's name before torch_npu 2.9, and since
        "Block Num": 0,
        "HF32 Eligible": "NO",
        **tensors("Input", inputs),
        **tensors("Output", outputs),
    }


def tensors(which: str, given: Sequence[tuple[list[int], str]]) -> Row:
    """The columns that describe a kernel's arguments or results.

    >>> tensors("Input", [([2, 3], "Half")])["Input Shapes"]
    '"2,3"'
    """
    shapes = ";".join(",".join(map(str, shape)) for shape, _ in given)
    return {
        f"{which} Shapes": f'"{shapes}"',
        f"{which} Data Types": ";".join(TYPES.get(name, name.upper()) for _, name in given),
        f"{which} Formats": ";".join("ND" for _ in given),
    }


def op_statistic(recording: Recording) -> list[Row]:
    """The total time of each type of kernel, the longest first."""
    groups: dict[tuple[int, str, str], list[float]] = {}
    for task in recording.tasks:
        if task.kind == "kernel":
            groups.setdefault((task.device, task.type, task.core), []).append((task.end - task.start) / 1000)
    total = sum(sum(times) for times in groups.values())
    rows = [
        {
            "Device_id": device,
            "OP Type": name,
            "Core Type": core,
            "Count": len(times),
            "Total Time(us)": round(sum(times), 3),
            "Min Time(us)": min(times),
            "Avg Time(us)": round(sum(times) / len(times), 3),
            "Max Time(us)": max(times),
            "Ratio(%)": round(100 * sum(times) / total, 3),
        }
        for (device, name, core), times in groups.items()
    ]
    return sorted(rows, key=lambda row: -row["Total Time(us)"])


def api_statistic(recording: Recording) -> list[Row]:
    """The number and time of the host's calls of each CANN function."""
    groups: dict[tuple[str, str], list[float]] = {}
    for call in recording.calls:
        groups.setdefault(("acl", call.name), []).append((call.end - call.start) / 1000)
    for task in recording.tasks:
        groups.setdefault(("node", "launch"), []).append(max(0, task.start - task.issued) / 1000)
    return [
        {
            "Device_id": "host",
            "Level": level,
            "API Name": name,
            "Time(us)": round(sum(times), 3),
            "Count": len(times),
            "Avg(us)": round(sum(times) / len(times), 3),
            "Min(us)": min(times),
            "Max(us)": max(times),
            "Variance": round(statistics.pvariance(times), 3),
        }
        for (level, name), times in sorted(groups.items())
    ]


def task_time(recording: Recording) -> list[Row]:
    """Every task of every stream."""
    return [
        {
            "Device_id": task.device,
            "kernel_name": task.name,
            "kernel_type": task.core,
            "stream_id": task.stream,
            "task_id": number,
            "task_time(us)": (task.end - task.start) / 1000,
            "task_start(us)": f"{task.start // 1000}.{task.start % 1000:03d}\t",
            "task_stop(us)": f"{task.end // 1000}.{task.end % 1000:03d}\t",
        }
        for number, task in enumerate(recording.tasks)
    ]


def communication(tasks: Iterable[ProfiledTask]) -> dict[str, Any]:
    """communication.json: how much each collective moved, and how long it took."""
    written: dict[str, Any] = {}
    for task in tasks:
        if task.kind != "collective":
            continue
        megabytes, milliseconds = task.fields["bytes"] / 1e6, (task.end - task.start) / 1e6
        written[f"{task.name}@{task.fields['group']}"] = {
            "Communication Time Info": {
                "Start Timestamp(us)": task.start / 1000,
                "Elapse Time(ms)": milliseconds,
                "Transit Time(ms)": 0,
                "Wait Time(ms)": 0,
                "Synchronization Time(ms)": 0,
                "Idle Time(ms)": 0,
                "Wait Time Ratio": 0,
                "Synchronization Time Ratio": 0,
            },
            "Communication Bandwidth Info": {
                "HCCS": {
                    "Transit Size(MB)": megabytes,
                    "Transit Time(ms)": milliseconds,
                    "Bandwidth(GB/s)": round(megabytes / milliseconds, 4) if milliseconds else 0,
                    "Large Packet Ratio": 0,
                    "Size Distribution": {str(megabytes): [1, milliseconds]},
                }
            },
        }
    return written
