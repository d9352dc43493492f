"""The SQLite databases of torch_npu's profiler: ascend_pytorch_profiler_{rank}.db and analysis.db."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.performance.read.ascend_csv import type_of, work_of
from npukit.performance.read.ascend_json import COPY_TASKS
from npukit.performance.read.model import Collective, HostCall, Kernel, Link, Sample, Span, StepBreakdown, Trace, Work
from npukit.performance.read.stream import sentences
from npukit.performance.read.values import SIZES, dtype_of, dtypes_of, number, shapes_of, users_line, whole

OPERATOR = 50001  # the type of framework operators in PYTORCH_API


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Tables]:
    with sentences(path):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        try:
            yield _Tables(connection)
        finally:
            connection.close()


class _Tables:
    """Rows by column name, with None for columns that this version does not write."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.names = {name for (name,) in rows}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        if table not in self.names:
            return
        existing = {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
        selected = ", ".join(column if column in existing else "NULL" for column in columns)
        yield from self._connection.execute(f"SELECT {selected} FROM {table}")

    def named(self, table: str) -> dict[Any, str]:
        return {identity: str(name) for identity, name in self.rows(table, "id", "name")}


def read_database(path: Path, trace: Trace) -> None:
    """ascend_pytorch_profiler_{rank}.db, or msprof's own database: everything about one rank."""
    with _opened(path) as tables:
        strings = {identity: str(value) for identity, value in tables.rows("STRING_IDS", "id", "value")}
        reader = _Database(tables, strings, trace)
        reader.read_host()
        reader.read_kernels()
        reader.read_communication()
        reader.read_rest()


class _Database:
    def __init__(self, tables: _Tables, strings: dict[int, str], trace: Trace) -> None:
        self.tables, self.strings, self.trace = tables, strings, trace
        self._launched: dict[int, int] = {}
        self._op_of: dict[int, HostCall] = {}

    def text(self, identity: Any) -> str:
        return self.strings.get(identity, "") if isinstance(identity, int) else str(identity or "")

    def read_host(self) -> None:
        """The calls of PyTorch and CANN, and which call launched which kernel."""
        for start, end, thread, connection, name in self.tables.rows(
            "CANN_API", "startNs", "endNs", "globalTid", "connectionId", "name"
        ):
            if (span := _span(start, end)) is not None:
                self.trace.runtime.append(HostCall(self.text(name), *span, str(thread)))
                self._launched.setdefault(connection, span.end)
        lines = self._lines()
        of_call: dict[Any, list[Any]] = {}
        for identity, connection in self.tables.rows("CONNECTION_IDS", "id", "connectionId"):
            of_call.setdefault(identity, []).append(connection)
        columns = (
            "startNs",
            "endNs",
            "globalTid",
            "connectionId",
            "name",
            "inputDtypes",
            "inputShapes",
            "callchainId",
            "type",
        )
        for start, end, thread, connection, name, types, shapes, chain, kind in self.tables.rows(
            "PYTORCH_API", *columns
        ):
            span, title = _span(start, end), self.text(name)
            if span is None or (kind not in (OPERATOR, None) and not title.startswith("enumerate(DataLoader)")):
                continue
            call = HostCall(
                title,
                *span,
                str(thread),
                shapes_of(self.text(shapes)),
                dtypes_of(self.text(types)),
                lines.get(chain, ""),
            )
            is_mark = title.startswith(("enumerate(DataLoader)", "Optimizer."))
            (self.trace.marks if is_mark else self.trace.ops).append(call)
            for task in of_call.get(connection, ()):
                self._op_of[task] = call

    def _lines(self) -> dict[Any, str]:
        """The user's own line in each call chain."""
        frames: dict[Any, list[tuple[int, str]]] = {}
        for identity, frame, depth in self.tables.rows("PYTORCH_CALLCHAINS", "id", "stack", "stackDepth"):
            frames.setdefault(identity, []).append((depth or 0, self.text(frame)))
        return {identity: users_line(text for _, text in sorted(chain)) for identity, chain in frames.items()}

    def read_kernels(self) -> None:
        """TASK joined with COMPUTE_TASK_INFO. Tasks without the latter are copies or irrelevant."""
        columns = (
            "globalTaskId",
            "name",
            "opType",
            "taskType",
            "inputShapes",
            "inputDataTypes",
            "inputFormats",
            "outputShapes",
        )
        for core, dims, nums in self.tables.rows("COMPUTE_TASK_INFO", "taskType", "blockDim", "blockNum"):
            if self.text(core) in ("AI_CORE", "MIX_AIC"):
                self.trace.cores = max(self.trace.cores, whole(dims) or whole(nums) or 0)
        known = {row[0]: row[1:] for row in self.tables.rows("COMPUTE_TASK_INFO", *columns)}
        steps = [(whole(i), _span(s, e)) for i, s, e in self.tables.rows("STEP_TIME", "id", "startNs", "endNs")]
        self.trace.steps = sorted(span for _, span in steps if span)
        for start, end, connection, task, kind, stream, card in self.tables.rows(
            "TASK", "startNs", "endNs", "connectionId", "globalTaskId", "taskType", "streamId", "deviceId"
        ):
            span = _span(start, end)
            if span is None:
                continue
            if task in known:
                name, op, core, shapes, types, formats, outputs = map(self.text, known[task])
                kernel = Kernel(
                    name, op or type_of(name), work_of(name, core), *span, str(stream), shapes=shapes_of(shapes),
                    dtypes=dtypes_of(types), formats=tuple(filter(None, formats.split(";"))),
                    outputs=shapes_of(outputs),
                )  # fmt: skip
            elif self.text(kind) in COPY_TASKS:
                kernel = Kernel(self.text(kind), "MEMCPY", Work.copy, *span, str(stream))
            else:
                continue
            kernel.launched, kernel.card = self._launched.get(connection), whole(card)
            if call := self._op_of.get(connection):
                kernel.op, kernel.stack = call.name, call.stack
            self.trace.kernels.append(kernel)

    def read_communication(self) -> None:
        """The collectives."""
        types = self.tables.named("ENUM_HCCL_DATA_TYPE")
        for name, start, end, group, dtype, count, op, card in self.tables.rows(
            "COMMUNICATION_OP", "opName", "startNs", "endNs", "groupName", "dataType", "count", "opType", "deviceId"
        ):
            span = _span(start, end)
            if span is None:
                continue
            size = (whole(count) or 0) * SIZES.get(dtype_of(types.get(dtype, "")), 4)
            title = self.text(name)
            op = self.text(op)  # N/A at Level0
            kind = (title.partition("__")[0] if op in ("", "N/A") else op).removeprefix("hcom_").strip("_").lower()
            self.trace.collectives.append(Collective(title, kind, *span, self.text(group), bytes=size or None))
            self.trace.kernels.append(Kernel(title, kind, Work.communication, *span, card=whole(card)))
            self.trace.has.add("sizes")

    def read_rest(self) -> None:
        """Memory, frequency, garbage collection, the card, and which data is present."""
        trace, tables = self.trace, self.tables
        for component, time, allocated, reserved in tables.rows(
            "MEMORY_RECORD", "component", "timestamp", "totalAllocated", "totalReserved"
        ):
            if self.text(component) == "PTA" and None not in (whole(time), whole(allocated), whole(reserved)):
                trace.memory.append(Sample(int(time), int(allocated), int(reserved)))
        for (used,) in tables.rows("NPU_MEM", "hbm"):
            trace.process_memory = max(trace.process_memory, whole(used) or 0)
        frequencies = (whole(value) for (value,) in tables.rows("AICORE_FREQ", "freq"))
        trace.frequencies += [frequency for frequency in frequencies if frequency]
        for start, end in tables.rows("GC_RECORD", "startNs", "endNs"):
            if (span := _span(start, end)) is not None:
                trace.marks.append(HostCall("GC", *span))
        trace.simulated = trace.simulated or ("simulated", "true") in tables.rows("META_DATA", "name", "value")
        for (name,) in tables.rows("NPU_INFO", "name"):
            trace.device_name = str(name)
        for (rank,) in tables.rows("RANK_DEVICE_MAP", "rankId"):
            trace.rank = whole(rank) if (whole(rank) or -1) >= 0 else trace.rank  # type: ignore[assignment]
        content = {
            "kernels": trace.kernels, "host": trace.ops or trace.runtime, "memory": trace.memory,
            "launches": any(kernel.launched for kernel in trace.kernels),
            "shapes": any(kernel.shapes for kernel in trace.kernels),
        }  # fmt: skip
        trace.has |= {name for name, there in content.items() if there}


def read_analysis(path: Path, trace: Trace) -> None:
    """analysis.db: the step's breakdown in microseconds, and the links."""
    with _opened(path) as tables:
        for compute, exposed, free in tables.rows("StepTraceTime", "computing", "communication_not_overlapped", "free"):
            parts = [number(compute), number(exposed), number(free)]
            if None not in parts and sum(map(float, parts)) > 0:  # type: ignore[arg-type]
                trace.given.append(
                    StepBreakdown(float(compute) / 1e3, float(exposed) / 1e3, 0.0, float(free) / 1e3, None)
                )
                trace.has.add("split")
        for source, target, transport, size, time in tables.rows(
            "CommAnalyzerMatrix", "src_rank", "dst_rank", "transport_type", "transit_size", "transit_time"
        ):
            if None not in (whole(source), whole(target), number(size), number(time)):
                trace.links.append(Link(int(source), int(target), str(transport), float(size) * 1e6, float(time) / 1e3))


def _span(start: Any, end: Any) -> Span | None:
    begin, finish = whole_ns(start), whole_ns(end)
    return Span(begin, finish) if begin is not None and finish is not None and finish >= begin else None


def whole_ns(value: Any) -> int | None:
    """Nanoseconds, which PYTORCH_API stores as text. A float would lose the last digits."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
