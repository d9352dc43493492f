"""The result of walking through one step of a job."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from npukit.performance.plan.work import PlannedWork

ACCUMULATION = 2  # the second batch of a step has the gradients of the first; further ones are like it


@dataclass(frozen=True)
class Held:
    """Memory at the peak: its role, and the module of activations."""

    role: str
    module: str
    bytes: int


@dataclass(frozen=True)
class Walked:
    """Bytes of one rank from torch_npu's allocator, and the work of the last step."""

    peak: int
    reserved: int
    held: tuple[Held, ...]
    steps: int
    work: tuple[PlannedWork, ...]  # forward and backward
    update: tuple[PlannedWork, ...]  # the optimizer

    def of_step(self, batches: float = 1.0, gathers: bool = False) -> tuple[PlannedWork, ...]:
        """The work of a step with `batches` times as many batches as the one that was walked through.

        Gradients are exchanged once per step, gathered weights (`gathers`) in every batch.
        """
        times = [batches if gathers or work.kind != "collective" else 1.0 for work in self.work]
        return (*(work.times(number) for work, number in zip(self.work, times, strict=True)), *self.update)

    def by_role(self) -> dict[str, int]:
        """What holds the memory at the peak, largest first. The sum is the peak or slightly more."""
        totals: dict[str, int] = defaultdict(int)
        for held in self.held:
            totals[held.role] += held.bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def from_json(data: dict[str, Any]) -> Walked:
    """Read the output of `to_json`."""
    return Walked(
        **{
            **data,
            "held": tuple(Held(**row) for row in data["held"]),
            "work": tuple(PlannedWork(**row) for row in data["work"]),
            "update": tuple(PlannedWork(**row) for row in data["update"]),
        }
    )
