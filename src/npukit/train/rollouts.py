"""Training on what the model itself does: batches are made from rows of the data with the model as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from npukit.train.data import Batch
from npukit.train.parallel import Parallel


class Rollouts(Protocol):
    """What makes the batches of a step in reinforcement learning."""

    repeats: int  # steps that learn from one generation
    figures: Mapping[str, Tensor]  # of the last generation, which are told beside the loss; the same on all ranks

    def rows(self, ranks: int) -> int:
        """How many rows of the data make one generation; every rank is given all of them."""

    def begin(self, parallel: Parallel) -> None:
        """The model is on its devices, with the weights that it begins with."""

    def batches(self, step: int, rows: Batch) -> list[Batch]:
        """This rank's batches of a step."""

    def state_dict(self, step: int) -> dict[str, Any]:
        """What a run that goes on after this step must know, in plain containers."""

    def load_state_dict(self, step: int, state: dict[str, Any]) -> None:
        """Go on after a step."""
