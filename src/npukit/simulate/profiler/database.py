"""msprof_*.db: the recording as SQLite tables, in which STRING_IDS numbers every name."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from npukit.simulate.profiler import tables
from npukit.simulate.profiler.recording import ProfiledTask, Recording

NODE, ACL = 10000, 20000  # levels of CANN_API
BYTES = 2  # HCCL's number for int8, because counts are bytes
TABLES = {
    "STRING_IDS": "id, value",
    "ENUM_API_TYPE": "id, name",
    "ENUM_HCCL_DATA_TYPE": "id, name",
    "META_DATA": "name, value",
    "CANN_API": "startNs, endNs, type, globalTid, connectionId, name",
    "TASK": "startNs, endNs, deviceId, connectionId, globalTaskId, globalPid, taskType, contextId, streamId, taskId, "
    "modelId",
    "COMPUTE_TASK_INFO": "name, globalTaskId, blockNum, mixBlockNum, taskType, opType, inputFormats, inputDataTypes, "
    "inputShapes, outputFormats, outputDataTypes, outputShapes, attrInfo",
    "COMMUNICATION_OP": "opName, startNs, endNs, connectionId, groupName, opId, relay, retry, dataType, algType, "
    "count, opType",
    "NPU_INFO": "id, name",
}


class _Strings:
    """Assigns numbers to texts."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def write_database(recording: Recording, path: Path, card: str) -> None:
    """Write a recording to a database.

    >>> write_database(recording, Path("msprof_20261116044500.db"), "Ascend910B3")
    """
    strings = _Strings()
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    rows["ENUM_API_TYPE"] = [(NODE, "node"), (ACL, "acl")]
    rows["ENUM_HCCL_DATA_TYPE"] = [(BYTES, "INT8")]
    rows["META_DATA"] = [("SCHEMA_VERSION", "1.0.0"), ("simulated", "true")]
    rows["NPU_INFO"] = [(device, card) for device in recording.devices]
    for call in recording.calls:
        thread = recording.pid << 32 | call.thread
        rows["CANN_API"].append((call.start, call.end, ACL, thread, -1, strings(call.name)))
    for number, task in enumerate(recording.tasks, start=1):
        _add(rows, strings, recording.pid, number, task)
    rows["STRING_IDS"] = [(number, text) for text, number in strings.numbers.items()]
    _write(path, rows)


def _add(rows: dict[str, list[tuple[Any, ...]]], strings: _Strings, pid: int, number: int, task: ProfiledTask) -> None:
    thread, handed_over = pid << 32 | task.thread, max(task.start, task.issued)
    rows["CANN_API"].append((task.issued, handed_over, NODE, thread, number, strings("launch")))
    rows["TASK"].append(
        (task.start, task.end, task.device, number, number, pid, strings(task.core), 0, task.stream, number, 0)
    )
    if task.kind == "kernel":
        parts = [
            strings(str(tables.tensors(which, task.fields[f"{which.lower()}s"])[f"{which} {part}"]).strip('"'))
            for which in ("Input", "Output")
            for part in ("Formats", "Data Types", "Shapes")
        ]
        name, kind = strings(task.name), strings(task.type)
        rows["COMPUTE_TASK_INFO"].append((name, number, 0, 0, strings(task.core), kind, *parts, strings("")))
    elif task.kind == "collective":
        group, size = strings(task.fields["group"]), task.fields["bytes"]
        rows["COMMUNICATION_OP"].append(
            (strings(task.name), task.start, task.end, number, group, number, 0, 0, BYTES, strings(""), size,
             strings(task.type))
        )  # fmt: skip


def _write(path: Path, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished)
    with connection:
        for name, columns in TABLES.items():
            names = columns.split(", ")
            connection.execute(f"CREATE TABLE {name} ({columns})")
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' for _ in names)})", rows[name])
    connection.close()
    unfinished.replace(path)
