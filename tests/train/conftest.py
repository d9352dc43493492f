"""A small regression job for the training engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from npukit.train import Trainer, TrainOptions

ROWS = 46  # with batches of 2 and two of them a step: 12 steps an epoch, the last one smaller


class Job:
    """`job(max_steps=5)` makes a Trainer; its output folder is the same for every Trainer of the job."""

    def __init__(self, output: Path) -> None:
        self.output = output

    @staticmethod
    def model(dropout: float = 0.1) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))

    @staticmethod
    def rows(count: int = ROWS) -> list[tuple[Tensor, Tensor]]:
        inputs = torch.randn(count, 6, generator=torch.Generator().manual_seed(7))
        return [(row, row.sum()) for row in inputs]

    @staticmethod
    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1])

    def __call__(
        self,
        model: nn.Module | None = None,
        rows: Any = None,
        eval_rows: Any = None,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        arguments: dict[str, Any] | None = None,
        **options: Any,
    ) -> Trainer:
        usual = {"output": self.output, "batch_size": 2, "accumulation": 2, "learning_rate": 1e-2, "plot": False}
        chosen = TrainOptions(**{**usual, **options})
        rows = self.rows() if rows is None else rows
        return Trainer(model or self.model(), chosen, rows, eval_rows, loss=loss or self.loss, **(arguments or {}))

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.output / "model.safetensors")

    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.rpartition("-")[2]) for path in self.output.glob("checkpoint-*"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "output")


@pytest.fixture
def other_job(tmp_path: Path) -> Job:
    return Job(tmp_path / "other")


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Bit by bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def are_same() -> Callable[[dict[str, Tensor], dict[str, Tensor]], bool]:
    return same
