"""trace_view.json, communication.json and communication_matrix.json of torch_npu's profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npukit.performance.read.ascend_csv import HCCL, type_of, work_of
from npukit.performance.read.kineto import STEP
from npukit.performance.read.model import Collective, HostCall, Kernel, Link, Span, Trace, Work
from npukit.performance.read.python_stack import Frames
from npukit.performance.read.stream import json_items, json_whole
from npukit.performance.read.values import dtypes_of, microseconds, number, shapes_of, users_line, whole

COMPUTE_TASKS = {
    "AI_CORE",
    "AI_VECTOR_CORE",
    "MIX_AIC",
    "MIX_AIV",
    "AI_CPU",
    "DSA_SQE",
    "KERNEL_AICORE",
    "KERNEL_AIVEC",
}
COPY_TASKS = {"MEMCPY_ASYNC", "SDMA_SQE", "MEMCPY"}
MEGABYTE = 10**6  # bytes per MB sent over links


def read_trace_view(path: Path, trace: Trace) -> None:
    """trace_view.json: the host's calls, which call launched which kernel, copies and the cores' frequency."""
    reader = _TraceView(trace)
    for event in json_items(path):
        if isinstance(event, dict):
            reader.take(event)
    reader.finish()


class _TraceView:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._with_kernels = not trace.kernels
        self._processes: dict[Any, str] = {}
        self._frames = Frames()
        self._later: list[dict[str, Any]] = []  # events of processes whose names are not known yet
        self._op_at: dict[tuple[str, int], HostCall] = {}
        self._call_end: dict[tuple[str, int], int] = {}
        self._flows: dict[tuple[str, Any], tuple[str, int]] = {}  # by category and id: the starting thread and time
        self._arrivals: list[tuple[str, Any, int]] = []
        self._steps: list[Span] = []

    def take(self, event: dict[str, Any]) -> None:
        """Add one event; they may come in any order."""
        phase = event.get("ph")
        if phase == "M" and event.get("name") == "process_name" and isinstance(event.get("args"), dict):
            self._processes[_key(event.get("pid"))] = str(event["args"].get("name", ""))
        elif phase == "M" and event.get("name") == "process_labels" and isinstance(event.get("args"), dict):
            labels = str(event["args"].get("labels", ""))
            self.trace.simulated = self.trace.simulated or labels.endswith("(simulated)")
        elif phase in ("s", "f") and event.get("cat") in ("async_npu", "HostToDevice"):
            self._take_flow(event)
        elif phase == "X" and _key(event.get("pid")) not in self._processes:
            self._later.append(event)
        elif phase == "X":
            self._take_span(event)
        elif phase == "C" and event.get("name") == "AI Core Freq" and isinstance(event.get("args"), dict):
            self.trace.frequencies.append(whole(event["args"].get("MHz")) or 0)

    def _take_flow(self, event: dict[str, Any]) -> None:
        time = microseconds(event.get("ts"))
        if time is None:
            return
        if event["ph"] == "s":
            self._flows[event["cat"], _key(event.get("id"))] = (_thread(event), time)
        else:
            self._arrivals.append((event["cat"], _key(event.get("id")), time))

    def _take_span(self, event: dict[str, Any]) -> None:
        start, length = microseconds(event.get("ts")), microseconds(event.get("dur", 0))
        name, args = event.get("name"), event.get("args")
        if start is None or length is None or length < 0 or not isinstance(name, str):
            return
        end, args = start + length, args if isinstance(args, dict) else {}
        process, category = self._processes.get(_key(event.get("pid")), ""), event.get("cat")
        if process == "Ascend Hardware":
            self._take_task(name, start, end, args)
        elif process == "CANN":
            self.trace.runtime.append(HostCall(name.rpartition("@")[2], start, end, _thread(event)))
            self._call_end[_thread(event), start] = end
        elif process in ("HCCL", "Communication"):
            if self._with_kernels and (match := HCCL.match(name)):
                self.trace.collectives.append(Collective(name, match[1].lower(), start, end))
                self.trace.kernels.append(Kernel(name, match[1], Work.communication, start, end))
        elif STEP.match(name):
            self._steps.append(Span(start, end))
        elif category == "cpu_op":
            self._take_op(name, start, end, _thread(event), args)
        elif category == "python_function":
            self._frames.add(name, start, end, _thread(event))
        elif category in ("user_annotation", "mstx", "GC") or name.startswith("GC"):
            self.trace.marks.append(HostCall(name, start, end, _thread(event)))

    def _take_op(self, name: str, start: int, end: int, thread: str, args: dict[str, Any]) -> None:
        stack = args.get("Call stack")
        call = HostCall(
            name, start, end, thread, shapes_of(str(args.get("Input Dims", ""))),
            dtypes_of(str(args.get("Input type", ""))),
            users_line(stack.split(";")) if isinstance(stack, str) else "",
        )  # fmt: skip
        if name.startswith(("enumerate(DataLoader)", "Optimizer.")):
            self.trace.marks.append(call)
        else:
            self.trace.ops.append(call)
        self._op_at[thread, start] = call

    def _take_task(self, name: str, start: int, end: int, args: dict[str, Any]) -> None:
        task = str(args.get("Task Type", ""))
        stream = str(args.get("Physic Stream Id", args.get("Stream Id", "")))
        if task in COPY_TASKS:
            self.trace.kernels.append(Kernel(name, "MEMCPY", Work.copy, start, end, stream))
        elif self._with_kernels and task in COMPUTE_TASKS:
            self.trace.kernels.append(Kernel(name, type_of(name), work_of(name, task), start, end, stream))

    def finish(self) -> None:
        """Link the calls and kernels that flow events connect."""
        trace = self.trace
        for event in self._later:
            self._take_span(event)
        self._frames.place(trace.ops + trace.marks, trace.script)
        at = {kernel.start: kernel for kernel in trace.kernels}
        for category, identity, time in self._arrivals:
            kernel, source = at.get(time), self._flows.get((category, identity))
            if kernel is None or source is None:
                continue
            if category == "HostToDevice":
                kernel.launched = self._call_end.get(source, source[1])
            elif call := self._op_at.get(source):
                kernel.op, kernel.stack = call.name, call.stack
                kernel.shapes = kernel.shapes or call.shapes
        if self._steps:
            trace.steps = sorted(self._steps)
        launched = any(kernel.launched is not None for kernel in trace.kernels)
        trace.has |= {"kernels"} if trace.kernels else set()
        trace.has |= {"host"} if trace.ops or trace.runtime else set()
        trace.has |= ({"launches"} if launched else set()) | ({"stacks"} if self._frames else set())
        trace.has |= {"shapes"} if any(call.shapes for call in trace.ops[:1000]) else set()


def read_communication(path: Path, trace: Trace) -> None:
    """communication.json: how much each collective moved over which link, and how long it waited."""
    known = {(collective.name, collective.step): collective for collective in trace.collectives}
    for step, kind, name, facts in _operations(json_whole(path)):
        times, links = facts.get("Communication Time Info"), facts.get("Communication Bandwidth Info")
        if name.startswith("Total Op") or not isinstance(times, dict):
            continue
        plain, _, group = name.partition("@")
        start, elapsed = microseconds(times.get("Start Timestamp(us)")), number(times.get("Elapse Time(ms)"))
        if start is None or elapsed is None or elapsed < 0:
            continue
        call = known.get((plain, step)) or known.get((plain, None))
        if call is None:
            match = HCCL.match(plain)
            op = (match[1] if match else kind).lower()
            call = Collective(plain, op, start, start + round(elapsed * 1e6), step=step)
            trace.collectives.append(call)
        call.group = group
        call.waited = round((number(times.get("Wait Time(ms)")) or 0.0) * 1e6)
        call.bytes = _bytes(links)
        trace.has.add("sizes")


def _bytes(links: Any) -> int | None:
    """Return the bytes that all links carried, if the profile has them. Those of SDMA are also in other links."""
    if not isinstance(links, dict):
        return None
    megabytes = [
        number(facts.get("Transit Size(MB)")) or 0.0
        for link, facts in links.items()
        if link != "SDMA" and isinstance(facts, dict)
    ]
    return round(sum(megabytes) * MEGABYTE) or None


def _operations(data: dict[str, Any]) -> list[tuple[int | None, str, str, dict[str, Any]]]:
    rows = []
    for step, kinds in data.items():
        index = whole(step.removeprefix("step")) if isinstance(step, str) else None
        for kind, operations in kinds.items() if isinstance(kinds, dict) else ():
            for name, facts in operations.items() if isinstance(operations, dict) else ():
                if isinstance(facts, dict):
                    rows.append((index, str(kind), str(name), facts))
    return rows


def read_matrix(path: Path, trace: Trace) -> None:
    """communication_matrix.json: what each rank sent to each other rank, from `total` if present, or else the parts."""
    operations = _operations(json_whole(path))
    totals = [operation for operation in operations if "-total" in operation[2]]
    for _, _, _, pairs in totals or operations:
        for pair, facts in pairs.items():
            source, _, target = str(pair).partition("-")
            if source.isdigit() and target.isdigit() and isinstance(facts, dict):
                size = (number(facts.get("Transit Size(MB)")) or 0.0) * MEGABYTE
                seconds = (number(facts.get("Transit Time(ms)")) or 0.0) / 1e3
                trace.links.append(Link(int(source), int(target), str(facts.get("Transport Type", "")), size, seconds))


def _key(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else str(value)


def _thread(event: dict[str, Any]) -> str:
    return f"{event.get('pid')}/{event.get('tid')}"
