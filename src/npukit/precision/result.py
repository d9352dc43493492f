"""The result of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Literal

from npukit.precision.dump import Call


class Outcome(str, Enum):
    """The outcome of a row. Only the first two count as compared."""

    same = "same"
    differs = "differs"
    only_left = "only left"
    only_right = "only right"
    unknown = "not compared"  # in both runs, but with nothing that can be compared


MIN_COVERAGE = 0.2
"""The share of rows below which nothing is concluded."""

Kind = Literal[
    "operator",  # the inputs agree, the outputs do not
    "argument",  # a setting such as epsilon differs
    "dtype",  # computed in a different dtype
    "nonfinite",  # NaN or Inf on one side
    "shape",
    "layout",  # the same values in a different order of dimensions, or a different part of them
    "random",  # random numbers
    "source",  # weights or data that no recorded call computed
    "outside",  # code between modules, at level modules
    "between",  # the producer's output agreed, the consumer's input does not
    "reads",  # the runs read the results of different calls
    "missing",  # only one run made the call that produced the tensor
    "gradient",  # only one run computes a gradient for something that both have
    "drift",  # no single call: the error grew gradually
]


@dataclass(frozen=True)
class Row:
    """A call of one run next to the same call of the other."""

    outcome: Outcome
    title: str
    left: str  # its name in that dump; empty if the run did not make the call
    right: str
    phase: str
    path: str
    step: int = 0
    rank: int = 0
    error: float | None = None  # relative error of the outputs
    inherited: float | None = None  # relative error of the inputs
    allowed: float | None = None
    details: tuple[str, ...] = ()

    @property
    def growth(self) -> float | None:
        """How many times larger the error of the outputs is than that of the inputs."""
        return self.error / self.inherited if self.error is not None and self.inherited else None

    @property
    def sqnr(self) -> float | None:
        """The signal-to-noise ratio in decibels."""
        return -20 * math.log10(self.error) if self.error and math.isfinite(self.error) else None


@dataclass(frozen=True)
class Loss:
    """The losses from which a step of both runs started its backward pass."""

    step: int
    rank: int
    left: float
    right: float


@dataclass(frozen=True)
class Cause:
    """A reason for the difference, as shown by the recordings."""

    code: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Replay:
    """The suspect recomputed on the CPU from the inputs of each run, with errors against float64."""

    left: float
    right: float
    rounding: float  # the CPU's error in the run's dtype
    wrong: Literal["left", "right", "both", "neither"]


@dataclass(frozen=True)
class Divergence:
    """The place where two runs diverge."""

    kind: Kind
    row: Row
    what: str  # the difference as a sentence
    path: str = ""  # the innermost module that contains every call named in the sentence
    place: str = ""  # the line of code in the left run, if known
    right_place: str = ""
    stack: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    replay: Replay | None = None  # if the dumps contain tensors
    calls: tuple[Call, Call] | None = field(default=None, repr=False)  # the calls of the row


@dataclass(frozen=True)
class Comparison:
    """Two runs, row by row, and the first place where they diverge."""

    left: str
    right: str
    first: Divergence | None
    counts: Mapping[str, int]  # number of rows by outcome
    renames: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    losses: tuple[Loss, ...] = ()

    @property
    def verdict(self) -> Literal["same", "different", "too little in common"]:
        """The verdict. Runs of which hardly anything was compared are not called the same."""
        if self.first:
            return "different"
        return "same" if self.coverage >= MIN_COVERAGE else "too little in common"

    @property
    def same(self) -> bool:
        return self.verdict == "same"

    @property
    def compared(self) -> int:
        return self.counts.get("same", 0) + self.counts.get("differs", 0)

    @property
    def coverage(self) -> float:
        """The share of all rows that could be compared."""
        return self.compared / max(1, sum(self.counts.values()))

    @property
    def exit_code(self) -> int:
        return 0 if self.same else 1

    def as_data(self) -> dict[str, Any]:
        """The comparison as plain data, including derived values. Numbers that are not finite become text."""
        derived = {"verdict": self.verdict, "compared": self.compared, "coverage": self.coverage}
        return {**derived, **plain(self)}


def plain(value: Any) -> Any:
    """A result as lists, dictionaries, numbers and text that any JSON parser accepts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
