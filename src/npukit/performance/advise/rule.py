"""A rule of `advise`: a check of a profile, the time that could be saved, and the data that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from npukit.performance.advise.rank import Rank
from npukit.report import Finding, Severity
from npukit.source.place import Place

NEEDS = {
    "kernels": "a profile with the device's activity (ProfilerActivity.NPU or CUDA), kernel_details.csv or the .db",
    "launches": "a profile with CPU activity: trace_view.json or the .db",
    "host": "a profile with CPU activity: trace_view.json or the .db",
    "shapes": "record_shapes=True, and on an NPU profiler_level=Level1",
    "memory": "profile_memory=True",
    "sizes": "profiler_level=Level1 with several ranks: communication.json or the .db",
    "ranks": "the profiles of several ranks: name them all, or their folder",
    "card": "a profile of a real card: on a simulated NPU kernels take the CPU's time",
    "gc": "gc_detect_threshold=1 in torch_npu's _ExperimentalConfig, or `npukit profile`",
    "script": "`npukit profile`, which notes the lines of the script",
}
WARNS_FROM = 3.0  # percent of the step


class Confidence(str, Enum):
    """The confidence of a finding."""

    high = "high"  # measured in this profile
    medium = "medium"  # follows from measurements, with an assumption that the finding names
    low = "low"  # a guess worth trying


@dataclass(frozen=True)
class Advice:
    """A finding in a profile: the most milliseconds of a step that could be saved, and its confidence."""

    finding: Finding
    ms: float
    percent: float  # of the step
    confidence: Confidence
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Unjudged:
    """A rule that could not be applied, and the setting that would allow it."""

    code: str
    name: str
    needs: str


Check = Callable[[Rank], Iterable[Advice]]
JobCheck = Callable[[Sequence[Rank]], Iterable[Advice]]


@dataclass(eq=False)
class Rule:
    """One rule, one file in advise/rules. Its module's docstring explains it.

    >>> rule = Rule("NPK803", "data-loader", why="...", remedy="...", needs=("host",))
    >>> @rule.on_rank
    ... def check(rank: Rank) -> Iterator[Advice]: ...
    """

    code: str
    name: str
    why: str
    remedy: str
    needs: tuple[str, ...] = ("kernels",)  # values of Trace.has
    devices: tuple[str, ...] = ("npu", "cuda", "cpu")
    several: bool = False  # whether it needs several ranks
    check: Check | None = None
    job_check: JobCheck | None = None
    doc: str = field(default="", repr=False)

    def on_rank(self, check: Check) -> Check:
        """Call the function for every rank."""
        self.check = check
        return check

    def on_job(self, check: JobCheck) -> JobCheck:
        """Call the function once with all ranks."""
        self.job_check = check
        return check

    def advice(
        self,
        rank: Rank,
        what: str,
        ms: float,
        evidence: str = "",
        confidence: Confidence = Confidence.high,
        remedy: str = "",
        line: str = "",
        ranks: Sequence[int] = (),
        subject: str = "",
        severity: Severity | None = None,
    ) -> Advice:
        """A finding of this rule; `line` is the user's own, as file:line."""
        whole = max(rank.split.step, ms)  # time before a single step does not belong to it
        percent = 100 * ms / whole if whole else 0.0
        severity = severity or (Severity.warning if percent >= WARNS_FROM else Severity.note)
        finding = Finding(
            self.code, severity, what, self.why, remedy or self.remedy, place_of(line), evidence, subject=subject
        )
        return Advice(finding, ms, percent, confidence, tuple(ranks) or (rank.trace.rank,))

    def missing(self, ranks: Sequence[Rank]) -> str:
        """What must be recorded for this rule; empty if the profile has it."""
        if self.several and not any(rank.trace.collectives or (rank.trace.world or 1) > 1 for rank in ranks):
            return ""
        applicable = [rank for rank in ranks if rank.trace.device in self.devices]
        for need in self.needs:
            if need == "ranks":
                if len(ranks) < 2 and (ranks[0].trace.world or 1) > 1:
                    return NEEDS[need]
            elif need == "card":
                if all(rank.trace.simulated for rank in ranks):
                    return NEEDS[need]
            elif applicable and not any(need in rank.trace.has for rank in applicable):
                return NEEDS[need]
        return ""


def place_of(line: str) -> Place | None:
    """
    >>> place_of("train.py:12").line
    12
    """
    file, _, number = line.rpartition(":")
    return Place(Path(file), int(number), 1, int(number), 1) if file and number.isdigit() else None
