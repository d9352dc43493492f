"""What a comparison found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Literal

from npukit.precision.dump import Call


class Outcome(str, Enum):
    """What became of a row; nothing else counts as compared but the first two."""

    same = "same"
    differs = "differs"
    only_left = "only left"
    only_right = "only right"
    unknown = "not compared"  # on both sides, with nothing in it that can be compared


MIN_COVERAGE = 0.2
"""The share of rows below which nothing is concluded."""

Kind = Literal[
    "operator",  # inputs agree, outputs do not
    "argument",  # the same, and a setting such as epsilon differs
    "dtype",  # computed in another type
    "nonfinite",  # NaN or Inf on one side
    "shape",
    "layout",  # the same values, with their dimensions in another order, or another part of them
    "random",  # random numbers
    "source",  # weights or data that nobody computed differ
    "outside",  # code between modules, at level modules
    "between",  # what came out of the producer agreed, what went into the consumer does not
    "reads",  # each run reads the result of another call
    "missing",  # the producer ran on one side only
    "gradient",  # only one run computes the gradient of something that both have
    "drift",  # no single call: the error grew step by step
]


@dataclass(frozen=True)
class Row:
    """A call of one run beside the same call of the other."""

    outcome: Outcome
    title: str
    left: str  # its name in that dump; empty where the run did not call it
    right: str
    phase: str
    path: str
    step: int = 0
    rank: int = 0
    error: float | None = None  # of its outputs, relative
    inherited: float | None = None  # of its inputs
    allowed: float | None = None
    details: tuple[str, ...] = ()

    @property
    def growth(self) -> float | None:
        """How many times larger the error comes out than it went in."""
        return self.error / self.inherited if self.error is not None and self.inherited else None

    @property
    def sqnr(self) -> float | None:
        """Signal to noise in decibels."""
        return -20 * math.log10(self.error) if self.error and math.isfinite(self.error) else None


@dataclass(frozen=True)
class Loss:
    """What a step of both runs began its backward pass from."""

    step: int
    rank: int
    left: float
    right: float


@dataclass(frozen=True)
class Cause:
    """What the records show to be the reason for a difference."""

    code: str
    text: str
    remedy: str


@dataclass(frozen=True)
class Replay:
    """The suspect computed once more, on the CPU, from the inputs of the left run: errors against float64."""

    left: float
    right: float
    rounding: float  # of the CPU in the type of the run
    wrong: Literal["left", "right", "both", "neither"]


@dataclass(frozen=True)
class Divergence:
    """Where two runs part."""

    kind: Kind
    row: Row
    what: str  # in a sentence
    path: str = ""  # the module that holds all calls that the sentence names
    place: str = ""  # the line of code in the left run, where it is known
    right_place: str = ""
    stack: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    replay: Replay | None = None  # where the dumps have tensors
    calls: tuple[Call, Call] | None = field(default=None, repr=False)  # of the row


@dataclass(frozen=True)
class Comparison:
    """Two runs, row by row, and the first place where they part."""

    left: str
    right: str
    first: Divergence | None
    counts: Mapping[str, int]  # by outcome
    renames: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    losses: tuple[Loss, ...] = ()

    @property
    def verdict(self) -> Literal["same", "different", "too little in common"]:
        """What was hardly compared is not called the same."""
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
        """The comparison as plain data, with what follows from it; figures that are not finite become text."""
        derived = {"verdict": self.verdict, "compared": self.compared, "coverage": self.coverage}
        return {**derived, **plain(self)}


def plain(value: Any) -> Any:
    """A result as lists, maps, numbers and text that any JSON parser takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
