"""Traces of torch.profiler: Kineto's Chrome JSON for CUDA, ROCm and the CPU, optionally compressed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from npukit.performance.read.lines import read_script
from npukit.performance.read.model import Collective, HostCall, Kernel, Sample, Span, Trace, Work
from npukit.performance.read.python_stack import Frames, Innermost, place_backward
from npukit.performance.read.stream import UnreadableProfile, json_head, json_items
from npukit.performance.read.values import SIZES, dtype_of, lists_to_shapes, microseconds, users_line, whole

SETTINGS = ("with_stack", "record_shapes", "profile_memory", "npukit_gc")  # the last one is written by npukit
HEAD = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", *SETTINGS)
EVALUATE = "autograd::engine::evaluate_function"
STEP = re.compile(r"ProfilerStep#(\d+)$")
_COLLECTIVE = re.compile(
    r"nccl\w*?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll)", re.IGNORECASE
)
_OTHER_DEVICES = {"mtia_ccp_events": "an MTIA", "hpu_op": "a Gaudi", "glow_runtime": "a Glow device"}
_ON_CPU = re.compile(r"^(?:gloo|mpi|ucc):(\w+)$")


def read_kineto(path: Path, listed: bool = False) -> Trace:
    """Read one rank's trace. `listed` means that the file is a plain list of events.

    >>> read_kineto(Path("rank0.pt.trace.json.gz")).device
    'cuda'
    """
    reader = _Reader(path, {} if listed else json_head(path, HEAD))
    for event in json_items(path, "" if listed else "traceEvents"):
        if isinstance(event, dict):
            reader.take(event)
    return reader.finish()


class _Reader:
    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.trace = Trace(path, "kineto", rank=_rank_in_name(path), device="cpu")
        self._read_head(head)
        self._frames = Frames()
        self._ops: dict[int, HostCall] = {}  # by Kineto's external id
        self._launches: dict[int, HostCall] = {}  # by correlation id
        self._links: list[tuple[Kernel, int | None, int | None]] = []  # kernel, correlation id, external id
        self._cpu_collectives: list[tuple[HostCall, str]] = []
        self._memory: list[Sample] = []
        self._forward: dict[int, HostCall] = {}  # by autograd's sequence number: the last forward call that has it
        self._nodes: list[tuple[HostCall, int]] = []  # calls that evaluate a backward node, with its sequence number

    def _read_head(self, head: dict[str, Any]) -> None:
        trace = self.trace
        trace.base = whole(head.get("baseTimeNanoseconds")) or 0
        match head.get("distributedInfo"):
            case {"rank": rank, "world_size": world}:
                trace.rank, trace.world = whole(rank) or 0, whole(world)
        match head.get("deviceProperties"):
            case [{"name": name}, *_]:
                trace.device_name = str(name)
        trace.settings = {name: str(head[name]) for name in SETTINGS if name in head}

    def take(self, event: dict[str, Any]) -> None:
        """Add one event of the trace."""
        if event.get("ph") == "X":
            start, length = microseconds(event.get("ts")), microseconds(event.get("dur", 0))
            if start is None or length is None or length < 0 or not isinstance(event.get("name"), str):
                return
            args = event.get("args")
            self._span(event, start, start + length, args if isinstance(args, dict) else {})
        elif event.get("name") == "[memory]" and isinstance(event.get("args"), dict):
            self._take_memory(event)

    def _span(self, event: dict[str, Any], start: int, end: int, args: dict[str, Any]) -> None:
        name, category = event["name"], str(event.get("cat", "")).lower()
        thread = f"{event.get('pid')}/{event.get('tid')}"
        if name.startswith(("ProfilerStep#", "enumerate(DataLoader)", "Optimizer.")):  # operators in old traces
            if not category.startswith("gpu"):
                self._take_mark(name, start, end, thread, args)
        elif category in ("cpu_op", "operator"):
            call = self._call(name, start, end, thread, args)
            self.trace.ops.append(call)
            if (external := whole(args.get("External id", args.get("external id")))) is not None:
                self._ops[external] = call
            if (number := whole(args.get("Sequence number"))) is not None:
                self._take_node(call, number, is_backward=bool(whole(args.get("Fwd thread id"))))
        elif category in ("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"):
            self._take_kernel(name, category, start, end, args)
        elif category in ("cuda_runtime", "cuda_driver", "runtime", "privateuse1_runtime", "mtia_runtime"):
            self.trace.runtime.append(call := HostCall(name, start, end, thread))
            if (correlation := whole(args.get("correlation"))) is not None:
                self._launches[correlation] = call
        elif category == "user_annotation":
            self._take_mark(name, start, end, thread, args)
        elif category == "python_function":
            self._frames.add(name, start, end, thread)
        elif category in _OTHER_DEVICES:
            raise UnreadableProfile(
                f"{self.trace.source} was recorded on {_OTHER_DEVICES[category]}, which npukit cannot analyse: "
                "profile on an NPU, a GPU or the CPU."
            )

    def _call(self, name: str, start: int, end: int, thread: str, args: dict[str, Any]) -> HostCall:
        stack = args.get("Call stack")
        types = args.get("Input type", ())
        return HostCall(
            name,
            start,
            end,
            thread,
            lists_to_shapes(args.get("Input Dims", args.get("Input dims"))),
            tuple(dtype_of(dtype) for dtype in types if isinstance(dtype, str)) if isinstance(types, list) else (),
            users_line(stack.split(";")) if isinstance(stack, str) else "",
        )

    def _take_node(self, call: HostCall, number: int, is_backward: bool) -> None:
        if is_backward:
            if call.name.startswith(EVALUATE):
                self._nodes.append((call, number))
        elif number not in self._forward or self._forward[number].start <= call.start:
            self._forward[number] = call

    def _take_kernel(self, name: str, category: str, start: int, end: int, args: dict[str, Any]) -> None:
        self.trace.device = "cuda"
        stream = str(args.get("stream", ""))
        external = whole(args.get("External id", args.get("external id")))
        if match := _COLLECTIVE.search(name):
            self.trace.collectives.append(_collective(name, match[1].lower(), start, end, args))
            kernel = Kernel(name, match[1], Work.communication, start, end, stream)
        elif category == "kernel":
            kernel = Kernel(name, _short(name), Work.compute, start, end, stream)
        else:
            kernel = Kernel(name, _short(name), Work.copy, start, end, stream, bytes=whole(args.get("bytes")) or 0)
        self.trace.kernels.append(kernel)
        self._links.append((kernel, whole(args.get("correlation")), external))

    def _take_mark(self, name: str, start: int, end: int, thread: str, args: dict[str, Any]) -> None:
        if STEP.match(name):
            self.trace.steps.append(Span(start, end))
            return
        call = self._call(name, start, end, thread, args)
        if match := _ON_CPU.match(name):
            self._cpu_collectives.append((call, match[1].replace("_", "")))
        else:
            self.trace.marks.append(call)

    def _take_memory(self, event: dict[str, Any]) -> None:
        args, time = event["args"], microseconds(event.get("ts"))
        if time is not None and args.get("Device Type") != 0:
            allocated, reserved = whole(args.get("Total Allocated")), whole(args.get("Total Reserved"))
            if allocated:
                self._memory.append(Sample(time, allocated, reserved or 0))

    def finish(self) -> Trace:
        """The trace with its parts linked."""
        trace = self.trace
        if not (trace.ops or trace.kernels or trace.marks):
            raise UnreadableProfile(
                f"{trace.source} contains no events of torch.profiler: name a trace that it exported."
            )
        trace.script = read_script(trace.source.parent, trace.rank, trace.base)
        self._frames.place(trace.ops + trace.marks, trace.script)
        place_backward(
            trace.ops, [(node, self._forward[number]) for node, number in self._nodes if number in self._forward]
        )
        inner = Innermost(trace.ops)
        for kernel, correlation, external in self._links:
            launch = self._launches.get(correlation) if correlation is not None else None
            call = self._ops.get(external) if external is not None else None
            if launch:
                kernel.launched = launch.end
                call = call or inner.around(launch)
            if call:
                kernel.op, kernel.shapes, kernel.dtypes, kernel.stack = call.name, call.shapes, call.dtypes, call.stack
        if trace.device == "cpu":
            self._cpu_work()
        trace.memory = self._memory
        trace.has |= {"kernels", "host"} | ({"launches"} if self._launches else set())
        trace.has |= {"shapes"} if any(call.shapes for call in trace.ops) else set()
        trace.has |= {"script"} if trace.script else set()
        trace.has |= {"sizes"} if any(collective.bytes for collective in trace.collectives) else set()
        trace.has |= {"memory"} if trace.memory else set()
        return trace

    def _cpu_work(self) -> None:
        """On the CPU, operators are the work: those that no other operator called."""
        trace = self.trace
        for call, op in self._cpu_collectives:
            size = _bytes(call)
            trace.collectives.append(Collective(call.name, op, call.start, call.end, ranks=(), bytes=size))
            trace.kernels.append(Kernel(call.name, op, Work.communication, call.start, call.end, call.thread))
        for call in outermost(trace.ops):
            kernel = Kernel(call.name, call.name.rpartition("::")[2], Work.compute, call.start, call.end, call.thread)
            kernel.op, kernel.shapes, kernel.dtypes, kernel.stack = call.name, call.shapes, call.dtypes, call.stack
            trace.kernels.append(kernel)


# Wrappers are not work: their contents are counted, and Python code between them belongs to the host. So are autograd's
# functions, whose names have no namespace: those of torch hold one operator, those of a user's are Python.
_WRAPPER = (EVALUATE, "c10d::", "record_param_comms", "torch/csrc", "## ")


def outermost(calls: list[HostCall]) -> list[HostCall]:
    """The operators that no other operator called, by thread; autograd's wrappers are transparent."""
    outer: list[HostCall] = []
    ends: dict[str, int] = {}
    for call in sorted(calls, key=lambda item: (item.start, -item.end)):
        if call.name.startswith(_WRAPPER) or "::" not in call.name:
            continue
        if call.start >= ends.get(call.thread, call.start):
            outer.append(call)
            ends[call.thread] = call.end
    return outer


def _collective(name: str, op: str, start: int, end: int, args: dict[str, Any]) -> Collective:
    elements = max(whole(args.get("In msg nelems")) or 0, whole(args.get("Out msg nelems")) or 0)
    size = elements * SIZES.get(dtype_of(str(args.get("dtype", ""))), 4)
    # Older traces give only the kernel's name, which all-to-all and a pipeline's send and receive share.
    kind = str(args.get("Collective name") or op).lower().replace("_", "").replace("sendrecv", "alltoall")
    ranks = tuple(int(rank) for rank in re.findall(r"\d+", str(args.get("Process Group Ranks", ""))))
    return Collective(name, kind, start, end, str(args.get("Process Group Name", "")), ranks, size or None)


def _bytes(call: HostCall) -> int | None:
    sizes = (SIZES.get(dtype, 4) * _count(shape) for shape, dtype in zip(call.shapes, call.dtypes, strict=False))
    return sum(sizes) or None


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _short(name: str) -> str:
    """The name of a CUDA kernel without its template arguments.

    >>> _short("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor>(int)")
    'vectorized_elementwise_kernel'
    """
    plain = name.removeprefix("void ").removeprefix("cutlass::Kernel<").removeprefix("cutlass::Kernel2<")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip() or plain[:60]


def _rank_in_name(path: Path) -> int:
    match = re.search(r"rank[-_]?(\d+)", path.name)
    return int(match[1]) if match else 0
