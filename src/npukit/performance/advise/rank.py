"""One rank's profile as the rules use it: its window, the step's breakdown, and why the device was idle."""

from __future__ import annotations

import dataclasses
import functools
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npukit.performance.read.lines import Script
from npukit.performance.read.model import GARBAGE, HostCall, Kernel, StepBreakdown, Trace, Work
from npukit.spans import Spans, length, minus, overlap, union

MS = 1e6  # nanoseconds
SYNC = re.compile(
    r"^(?:cuda|hip)(?:Stream|Device|Event)Synchronize|^(?:cuda|hip)Memcpy(?:2D|3D|DtoH|HtoD)?$"
    r"|^aclrtSynchronize\w*|^aclrtMemcpy$|^(?:Stream|Device|Event)Synchronize\w*|^MemCopySync"
)
ALLOCATE = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|MemCreate|MemUnmap)\b|^aclrt(?:Malloc|Free)\w*|^aclMallocMem\w*|^Dev(?:Malloc|Free)$"
)
COMPILE = re.compile(r"^aclopCompile\w*|^aclOpCompile\w*|^OpCompile|^cuModuleLoad\w*|^cuLibraryLoad\w*")
DYNAMO = re.compile(  # torch.compile's own events, as in traces of torch 2.13
    r"^dynamo$|^entire_(?:frame|backward)_compile$|(?:compile_inner|_backward_impl) \(dynamo_timed\)$"
)
COPY = re.compile(r"^(?:cuda|hip|aclrt)Memcpy\w*|^Mem[Cc]opy\w*")
RUNTIME = {"compile": COMPILE, "allocate": ALLOCATE, "copy": COPY}
LOADER = "enumerate(DataLoader)"


SOON = 50_000  # ns between events that belong together


class Gap(NamedTuple):
    """An interval in which the device was idle, and when the host had launched the next kernel."""

    start: int
    end: int
    handed_over: int | None  # None if not recorded


@dataclass(frozen=True)
class Rank:
    """A rank of a job. All `ms` figures are per step."""

    trace: Trace

    @functools.cached_property
    def window(self) -> tuple[int, int]:
        """From the first step's start to the end of the work; a single step starts with its first kernel."""
        steps = self.trace.steps
        work = [kernel for kernel in self.trace.kernels if kernel.work is not Work.copy] or self.trace.kernels
        if steps and (not work or self.trace.device == "cpu"):
            return steps[0].start, steps[-1].end
        if not work:
            return 0, 0
        start = _step_start(steps[0].start, work) if len(steps) > 1 else min(kernel.start for kernel in work)
        return start, max(start, max(kernel.end for kernel in work))

    @property
    def steps(self) -> int:
        return max(len(self.trace.steps), len(self.trace.given) if not self.trace.kernels else 0, 1)

    def per_step(self, nanoseconds: float) -> float:
        """Milliseconds per step."""
        return nanoseconds / MS / self.steps

    @functools.cached_property
    def kernels(self) -> list[Kernel]:
        """The kernels within the window, in order."""
        start, end = self.window
        kernels = [kernel for kernel in self.trace.kernels if kernel.start < end and kernel.end > start]
        # Without workers, the data loader's operators run on the model's thread, and so do traced ones.
        host = union([*self.loading, *self.tracing]) if self.trace.device == "cpu" else []
        if host:
            kernels = [kernel for kernel in kernels if not _inside(kernel, host)]
        return sorted(kernels, key=lambda kernel: kernel.start)

    @property
    def has_timeline(self) -> bool:
        """Whether the profile has the time of each kernel rather than only sums."""
        return "kernels" in self.trace.has and bool(self.trace.kernels)

    def of(self, *work: Work) -> list[Kernel]:
        return [kernel for kernel in self.kernels if kernel.work in work]

    @functools.cached_property
    def computing(self) -> Spans:
        return self._clipped(self.of(Work.compute, Work.aicpu))

    @functools.cached_property
    def communicating(self) -> Spans:
        return self._clipped(self.of(Work.communication))

    @functools.cached_property
    def copying(self) -> Spans:
        return self._clipped(self.of(Work.copy))

    @functools.cached_property
    def exposed(self) -> Spans:
        """Intervals of communication during which nothing is computed."""
        return minus(self.communicating, self.computing)

    @functools.cached_property
    def loading(self) -> Spans:
        """When the training loop was inside of a data loader, or of the start and the end of its workers."""
        marked = self._clipped(mark for mark in self.trace.marks if mark.name.startswith(LOADER))
        return union([*marked, *overlap([self.window], self.script.loading)])

    @functools.cached_property
    def tracing(self) -> Spans:
        """When torch.compile traced and compiled functions, as recorded by `npukit profile` or torch's own profiler."""
        start, end = self.window
        noted = overlap([(start, end)], self.script.compiled)
        return union([*noted, *self._clipped(op for op in self.trace.ops if DYNAMO.search(op.name))])

    @functools.cached_property
    def collecting(self) -> Spans:
        return self._clipped(mark for mark in self.trace.marks if GARBAGE.match(mark.name))

    def calls(self, pattern: re.Pattern[str]) -> list[HostCall]:
        """The runtime calls with this name within the window."""
        start, end = self.window
        return [
            call for call in self.trace.runtime if call.start < end and call.end > start and pattern.match(call.name)
        ]

    def _clipped(self, calls: Iterable[Kernel | HostCall]) -> Spans:
        start, end = self.window
        return union((max(call.start, start), min(call.end, end)) for call in calls if call.end > start)

    @functools.cached_property
    def gaps(self) -> list[Gap]:
        """The intervals in which the device was idle."""
        busy = union(self.computing + self.communicating + self.copying)
        starts = [kernel.start for kernel in self.kernels]
        gaps = []
        for start, end in minus([self.window], busy):
            index = bisect_left(starts, end)
            following = self.kernels[index] if index < len(self.kernels) else None
            gaps.append(Gap(start, end, following.launched if following else None))
        return gaps

    @functools.cached_property
    def waiting_for_host(self) -> Spans:
        """The parts of the gaps in which the host had not yet launched the next kernel."""
        if self.trace.device == "cpu":
            return [(gap.start, gap.end) for gap in self.gaps]
        parts = ((gap.start, min(gap.end, gap.handed_over)) for gap in self.gaps if gap.handed_over)
        return union(part for part in parts if part[1] > part[0])

    @functools.cached_property
    def split(self) -> StepBreakdown:
        """The milliseconds of a step by what the device did."""
        trace = self.trace
        if not self.has_timeline:
            return _mean(trace.given)
        exposed_copies = minus(minus(self.copying, self.computing), self.communicating)
        free = self.per_step(sum(gap.end - gap.start for gap in self.gaps))
        busy = [self.per_step(length(spans)) for spans in (self.computing, self.exposed, exposed_copies)]
        if trace.device != "cpu" and "launches" not in trace.has:
            return StepBreakdown(busy[0], busy[1], busy[2], free, None)
        host = self.per_step(length(self.waiting_for_host))
        return StepBreakdown(busy[0], busy[1], busy[2], host, free - host)

    @property
    def script(self) -> Script:
        """The user's code over time; empty if it was not recorded."""
        return self.trace.script or Script()

    @property
    def host_causes(self) -> dict[str, float]:
        """Why the device waited for the host, in milliseconds per step: loader, gc, sync, trace ... launch."""
        return {name: self.per_step(length(spans)) for name, spans in self.host_waits.items()}

    @functools.cached_property
    def host_waits(self) -> dict[str, Spans]:
        """The intervals in which the device waited for the host, by cause; the rest is `launch`."""
        left = self.waiting_for_host
        waits: dict[str, Spans] = {}
        for name, spans in (("loader", self.loading), ("gc", self.collecting), ("write", self.script.writes)):
            waits[name] = overlap(left, spans)
            left = minus(left, spans)
        waits["sync"] = self._after_sync(left)
        left = minus(left, waits["sync"])
        runtime = {name: self._clipped(self.calls(calls)) for name, calls in RUNTIME.items()}
        for name, spans in {"trace": self.tracing, **runtime}.items():
            waits[name] = overlap(left, spans)
            left = minus(left, spans)
        return {**waits, "launch": left}

    def lines_of(self, spans: Spans) -> dict[str, float]:
        """The milliseconds per step that each of the user's lines ran in these spans, the largest first."""
        return {line: self.per_step(time) for line, time in self.script.by_line(spans).items()}

    @functools.cached_property
    def work(self) -> list[Kernel] | list[HostCall]:
        """The work of each line: kernels on a device; on the CPU all operators, including nested ones."""
        if self.trace.device != "cpu":
            return self.of(Work.compute, Work.aicpu)
        start, end = self.window
        return [op for op in self.trace.ops if start <= op.start < end]

    def _after_sync(self, waits: Spans) -> Spans:
        """The waits that began while the host was waiting for the device, with nothing queued."""
        copies = sorted((call.end, call.start) for call in self.calls(COPY))
        syncs = union((_with_copy(call, copies), call.end + SOON) for call in self.calls(SYNC))
        ends = [end for _, end in syncs]
        after_sync = []
        for start, end in waits:
            index = bisect_left(ends, start)
            if index < len(syncs) and syncs[index][0] <= start:
                after_sync.append((start, end))
        return after_sync

    def time_of(self, kernels: Iterable[Kernel]) -> float:
        """Milliseconds per step of these kernels together."""
        return self.per_step(sum(kernel.duration for kernel in kernels))


FIRST_CALL = 3.0  # a first step this many times longer than the others does one-time work


def steady(trace: Trace) -> Trace:
    """The trace without first steps that are far longer than the others because they load, compile and allocate.

    A last step in which nothing was launched is dropped, too, because the profiler was about to stop.
    """
    last = max((kernel.launched or kernel.start for kernel in trace.kernels), default=0)
    if len(trace.steps) > 1 and 0 < last < trace.steps[-1].start:
        trace = dataclasses.replace(trace, steps=trace.steps[:-1])
    lengths = [step.end - step.start for step in trace.steps]
    first = 0
    while first + 1 < len(lengths) and lengths[first] > FIRST_CALL * sorted(lengths[first + 1 :])[-1]:
        first += 1
    if not first:
        return trace
    start = trace.steps[first].start
    kernels = [kernel for kernel in trace.kernels if (kernel.launched or kernel.start) >= start]
    return dataclasses.replace(trace, steps=trace.steps[first:], kernels=kernels)


@dataclass(frozen=True)
class RankSplit:
    """The step of one rank."""

    rank: int
    device: str
    steps: int
    step_ms: float
    split: StepBreakdown


def split_of(rank: Rank) -> RankSplit:
    """The step of a rank, to be shown."""
    return RankSplit(rank.trace.rank, rank.trace.device, rank.steps, rank.split.step, rank.split)


def _with_copy(sync: HostCall, copies: Sequence[tuple[int, int]]) -> int:
    """Extend a wait to its copy: `.item()` copies first, which already waits if the memory is pageable."""
    index = bisect_left(copies, (sync.start + 1, 0)) - 1
    return copies[index][1] if index >= 0 and copies[index][0] > sync.start - SOON else sync.start


def _step_start(host: int, work: Sequence[Kernel]) -> int:
    """When the device reached a step that the host began at this time; it may still be busy with earlier ones."""
    launched = [kernel for kernel in work if kernel.launched is not None and kernel.launched >= host]
    if not launched:
        return host
    first = min(launched, key=lambda kernel: kernel.start)
    return max(host, first.start - ((first.launched or host) - host))


def _mean(splits: Sequence[StepBreakdown]) -> StepBreakdown:
    """The mean of the profiler's own sums."""
    parts = dict.fromkeys(("compute", "communication", "copy", "host"), 0.0)
    for split in splits:
        for name in parts:
            parts[name] += getattr(split, name) / len(splits)
    return StepBreakdown(**parts, idle=None)


def _inside(kernel: Kernel, spans: Spans) -> bool:
    index = bisect_left(spans, (kernel.start + 1, 0)) - 1
    return index >= 0 and spans[index][0] <= kernel.start and kernel.end <= spans[index][1]
