"""The result of a verification."""

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
    logs: str = ""  # a folder with all that was printed until it ended, if it failed or differs


# What is compared: figures that the run told; values that backward() was called on; settings of the optimizer in each
# step; what the outermost modules returned; gradients before, and weights after a step.
Kind = Literal["loss", "backward", "settings", "outputs", "gradients", "weights"]


@dataclass(frozen=True)
class Compared:
    """The comparison of the figures of one kind and name."""

    kind: Kind
    name: str  # of a loss or a setting; "" otherwise, unless it is of another process of the run
    count: int
    first: float  # in the original
    last: float
    largest_difference: float  # relative
    tolerance: float


@dataclass(frozen=True)
class Losses:
    """The values of a loss in both runs, from the first to the last."""

    name: str
    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True)
class OpUse:
    """An operator, and the line of the migrated project that called it."""

    op: str
    line: str
    count: int


@dataclass(frozen=True)
class FirstDifference:
    """The first figure that differs."""

    kind: Kind
    name: str
    number: int  # counted from 1 among the figures of this kind and name
    step: int | None  # as printed on the same line
    before: float | None  # None if this run does not have it
    after: float | None
    before_text: str
    after_text: str
    cause: precision.Divergence | None = None  # left is the original, right the migrated project


@dataclass(frozen=True)
class Verification:
    """Whether a project computes the same after its migration."""

    same: bool
    tolerance: float
    compared: tuple[Compared, ...]  # never empty if both runs ended
    losses: tuple[Losses, ...]
    before: RunResult
    after: RunResult
    divergence: FirstDifference | None
    npu_ops: int | None  # how many operators ran on the simulated NPU; None if they were not counted
    cpu_fallbacks: tuple[OpUse, ...]  # computed on the CPU by torch_npu
    # Not in the simulated NPU, which raised NotImplementedError, but supported by a card
    not_simulated: tuple[OpUse, ...]
    notes: tuple[str, ...]
