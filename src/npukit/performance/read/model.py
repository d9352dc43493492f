"""The common form of a profile: one Trace per rank, with all times in integer nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from npukit.performance.read.lines import Script

GARBAGE = re.compile(r"^(?:npukit::)?gc\b|garbage.collect", re.IGNORECASE)  # the name of collections in traces
Shape = tuple[int, ...]


class Work(str, Enum):
    """What a device is busy with."""

    compute = "compute"
    aicpu = "aicpu"  # operators that an Ascend card runs on its slow built-in CPU cores
    communication = "communication"
    copy = "copy"


class Span(NamedTuple):
    """A time interval."""

    start: int
    end: int


@dataclass(frozen=True)
class StepBreakdown:
    """The milliseconds of one step by what the device did. If `idle` is None, `host` includes it."""

    compute: float
    communication: float  # exposed: while nothing was computed
    copy: float
    host: float  # the device waited for the host to launch work
    idle: float | None

    @property
    def step(self) -> float:
        return self.compute + self.communication + self.copy + self.host + (self.idle or 0.0)


@dataclass(slots=True)
class Kernel:
    """One kernel on the device; on the CPU, an operator that no other operator called."""

    name: str
    type: str
    work: Work
    start: int
    end: int
    stream: str = ""
    launched: int | None = None  # when the host had launched it
    op: str = ""  # the framework's operator that launched it
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    outputs: tuple[Shape, ...] = ()
    step: int | None = None
    card: int | None = None  # the device, if a profile has several
    bytes: int = 0
    stack: str = ""  # the innermost line of the user's own code

    @property
    def duration(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Collective:
    """One collective operation, as this rank saw it."""

    name: str
    op: str  # allreduce, allgather, send, recv, batchsendrecv ...
    start: int
    end: int
    group: str = ""
    ranks: tuple[int, ...] = ()
    bytes: int | None = None
    waited: int | None = None  # for the other ranks, if the profiler reports it
    step: int | None = None

    @property
    def duration(self) -> int:
        return self.end - self.start

    @property
    def is_p2p(self) -> bool:
        return any(word in self.op for word in ("send", "recv", "receive"))


@dataclass(slots=True)
class HostCall:
    """A call on the host."""

    name: str
    start: int
    end: int
    thread: str = ""
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    stack: str = ""

    @property
    def duration(self) -> int:
        return self.end - self.start


class Sample(NamedTuple):
    """Bytes of device memory at one time."""

    time: int
    allocated: int
    reserved: int


class Link(NamedTuple):
    """The transfers from one rank to another."""

    source: int
    target: int
    transport: str
    bytes: float
    seconds: float


@dataclass
class Trace:
    """The profile of one rank. Missing data is empty; `has` says what was present.

    >>> Trace(Path("rank0.json"), "kineto", rank=0, device="cuda")
    """

    source: Path
    format: str  # torch_npu, kineto or log
    rank: int = 0
    world: int | None = None
    device: str = "npu"  # npu, cuda or cpu
    device_name: str = ""
    simulated: bool = False
    base: int = 0  # nanoseconds to add to match the other ranks' clocks
    steps: list[Span] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    ops: list[HostCall] = field(default_factory=list)  # the framework's operators
    runtime: list[HostCall] = field(default_factory=list)  # calls of CANN or CUDA
    marks: list[HostCall] = field(default_factory=list)  # annotations: data loader, optimizer, garbage collection
    memory: list[Sample] = field(default_factory=list)  # memory of PyTorch's allocator
    process_memory: int = 0  # the peak device memory of the whole process
    links: list[Link] = field(default_factory=list)
    cores: int = 0  # the most cube cores that a kernel used
    frequencies: list[int] = field(default_factory=list)  # MHz of the AI cores over time
    api_totals: dict[str, tuple[int, int]] = field(default_factory=dict)  # runtime call: count, ns
    given: list[StepBreakdown] = field(default_factory=list)  # the step's breakdown by the profiler itself
    environment: dict[str, str] | None = None
    parallel: dict[str, int] = field(default_factory=dict)  # sizes of tensor, pipeline, data ... parallelism
    settings: dict[str, str] = field(default_factory=dict)  # the profiler's settings
    has: set[str] = field(default_factory=set)  # kernels, launches, shapes, stacks, memory, host, sizes, gc
    notes: list[str] = field(default_factory=list)  # what could not be read, and why
    script: Script | None = None  # the user's code over time, if `npukit profile` recorded it
    step_log: list[Mapping[str, float]] = field(default_factory=list)  # of a log.jsonl
