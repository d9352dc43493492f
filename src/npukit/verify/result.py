"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npukit.precision import result as precision


@dataclass(frozen=True)
class RunResult:
    """One of the two runs."""

    device: str
    exit_code: int
    seconds: float
    output: str  # its last lines


# What is compared: figures that the run told; values that backward() was called on; settings of the optimizer in each
# step; what the outermost modules returned; gradients before, and weights after a step.
Kind = Literal["loss", "backward", "settings", "outputs", "gradients", "weights"]


@dataclass(frozen=True)
class Compared:
    """Figures of one kind and name that both runs have."""

    kind: Kind
    name: str  # of a loss or a setting; "" otherwise, unless it is of another process of the run
    count: int
    first: float  # in the original
    last: float
    largest_difference: float  # relative
    tolerance: float


@dataclass(frozen=True)
class Losses:
    """A loss as both runs told it, from the first to the last."""

    name: str
    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True)
class OpUse:
    """An operator and the line of the migrated project that reached it."""

    op: str
    line: str
    count: int


@dataclass(frozen=True)
class FirstDifference:
    """The first figure that is not the same."""

    kind: Kind
    name: str
    number: int  # counted from 1 among the figures of this kind and name
    step: int | None  # as printed on the same line
    before: float | None  # None: this run does not have it
    after: float | None
    before_text: str
    after_text: str
    cause: precision.Divergence | None = None  # left is the original, right the migrated project


@dataclass(frozen=True)
class Verification:
    """Whether a project computes the same after its migration."""

    same: bool
    tolerance: float
    compared: tuple[Compared, ...]  # never empty where both runs ended
    losses: tuple[Losses, ...]
    before: RunResult
    after: RunResult
    divergence: FirstDifference | None
    npu_ops: int | None  # how many operators ran on the simulated NPU; None where nobody counted
    cpu_fallbacks: tuple[OpUse, ...]  # computed on the CPU by torch_npu
    not_simulated: tuple[OpUse, ...]  # the simulated NPU raised NotImplementedError, where a card computes
    notes: tuple[str, ...]
