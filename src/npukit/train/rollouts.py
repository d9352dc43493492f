"""Training on the model's own output: batches are generated from rows of the data by the present model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from npukit.train.data import Batch
from npukit.train.parallel import Parallel


class Rollouts(Protocol):
    """Generates the batches of a step in reinforcement learning."""

    repeats: int  # steps that learn from one generation
    figures: Mapping[str, Tensor]  # of the last generation, logged beside the loss; the same on all ranks

    def rows(self, ranks: int) -> int:
        """How many rows of the data one generation takes; every rank gets all of them."""

    def begin(self, parallel: Parallel) -> None:
        """Called before the first step, when the model is on its devices with its initial weights."""

    def batches(self, step: int, rows: Batch) -> list[Batch]:
        """This rank's batches of a step."""

    def end(self) -> None:
        """Called after the last step, and when training fails."""

    def state_dict(self, step: int) -> dict[str, Any]:
        """What a run that resumes after this step needs, in plain containers."""

    def load_state_dict(self, step: int, state: dict[str, Any]) -> None:
        """Resume after a step."""
