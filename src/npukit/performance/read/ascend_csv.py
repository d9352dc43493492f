"""The CSV files of torch_npu's profiler, with the columns of any version."""

from __future__ import annotations

import re
from pathlib import Path

from npukit.performance.read.model import Collective, Kernel, Sample, Span, StepBreakdown, Trace, Work
from npukit.performance.read.stream import csv_rows
from npukit.performance.read.values import dtypes_of, microseconds, number, shapes_of, whole

HCCL = re.compile(r"^hcom_(\w+?)__")
OP_SUMMARY = {  # msprof's column names, by those of torch_npu
    "Op Name": "Name",
    "OP Type": "Type",
    "Task Type": "Accelerator Core",
    "Task Start Time(us)": "Start Time(us)",
    "Task Duration(us)": "Duration(us)",
}
MEGABYTE = 2**20  # bytes per MB in memory files; in communication files it is 10**6


def read_kernels(path: Path, trace: Trace) -> None:
    """kernel_details.csv, or msprof's op_summary_*.csv: the kernels that ran on the card."""
    starts: dict[int, int] = {}
    for columns in csv_rows(path):
        row = {OP_SUMMARY.get(name, name): value for name, value in columns.items()}
        start, duration = microseconds(row.get("Start Time(us)")), number(row.get("Duration(us)"))
        if start is None or duration is None or duration < 0:
            continue
        trace.simulated = trace.simulated or row.get("OP State") == "simulated"
        step = whole(row.get("Step Id"))
        end = start + round(duration * 1000)
        name, core = row.get("Name", ""), row.get("Accelerator Core", "")
        if match := HCCL.match(name):
            trace.collectives.append(Collective(name, match[1].lower(), start, end, step=step))
        work = work_of(name, core)
        if core in ("AI_CORE", "MIX_AIC"):
            trace.cores = max(trace.cores, whole(row.get("Block Dim", row.get("Block Num"))) or 0)
        trace.kernels.append(
            Kernel(
                name, row.get("Type") or type_of(name), work, start, end, row.get("Stream ID", ""), step=step,
                card=whole(row.get("Device_id")),
                shapes=shapes_of(row.get("Input Shapes", "")), dtypes=dtypes_of(row.get("Input Data Types", "")),
                formats=tuple(filter(None, row.get("Input Formats", "").split(";"))),
                outputs=shapes_of(row.get("Output Shapes", "")),
            )
        )  # fmt: skip
        if step is not None:
            starts[step] = min(start, starts.get(step, start))
    if trace.kernels:
        trace.has |= {"kernels"} | ({"shapes"} if any(kernel.shapes for kernel in trace.kernels) else set())
    ends = {step: max(kernel.end for kernel in trace.kernels if kernel.step == step) for step in starts}
    trace.steps = [Span(starts[step], ends[step]) for step in sorted(starts)]


def work_of(name: str, core: str) -> Work:
    """The kind of work of a row, by the core that executed it."""
    if core in ("COMMUNICATION", "HCCL") or HCCL.match(name):
        return Work.communication
    return Work.aicpu if core == "AI_CPU" else Work.compute


def type_of(name: str) -> str:
    """The operator type in a kernel's name: its last word that is not a number.

    >>> type_of("aclnnMatmul_MatMulV3Common_MatMulV3")
    'MatMulV3'
    """
    words = [word for word in name.split("_") if word and not word.isdigit()]
    return words[-1] if words else name


def read_step_time(path: Path, trace: Trace) -> None:
    """step_trace_time.csv: the step's breakdown by the profiler itself."""
    for row in csv_rows(path):
        compute, exposed, free = (
            number(row.get(name)) for name in ("Computing", "Communication(Not Overlapped)", "Free")
        )
        if compute is not None and exposed is not None and free is not None and compute + exposed + free > 0:
            trace.given.append(StepBreakdown(compute / 1e3, exposed / 1e3, 0.0, free / 1e3, None))
            trace.has.add("split")


def read_api_statistic(path: Path, trace: Trace) -> None:
    """api_statistic.csv: how often the host called CANN, and for how long."""
    for row in csv_rows(path):
        count, total = whole(row.get("Count")), number(row.get("Time(us)"))
        if count and total is not None:
            trace.api_totals[row.get("API Name", "")] = (count, round(total * 1000))


def read_memory(path: Path, trace: Trace) -> None:
    """memory_record.csv: the memory of PyTorch's allocator over time, and of the whole process."""
    for row in csv_rows(path):
        time, reserved = microseconds(row.get("Timestamp(us)")), number(row.get("Total Reserved(MB)"))
        if time is None or reserved is None:
            continue
        if row.get("Component") == "APP":
            trace.process_memory = max(trace.process_memory, round(reserved * MEGABYTE))
        elif row.get("Component") == "PTA" and (allocated := number(row.get("Total Allocated(MB)"))) is not None:
            trace.memory.append(Sample(time, round(allocated * MEGABYTE), round(reserved * MEGABYTE)))
    if trace.memory:
        trace.has.add("memory")
