"""A small training run to record, with a place for every fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npukit.precision import capture

Fault = Callable[[Tensor], Tensor]
Run = Callable[..., Path]


class Block(nn.Module):
    def __init__(self, fault: Fault | None, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16, eps=eps)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x)).relu()
        return x + self.down(self.fault(hidden) if self.fault else hidden)


def tiny_model(fault: Fault | None = None, eps: float = 1e-5) -> nn.Module:
    return nn.Sequential(nn.Embedding(20, 16), Block(None, 1e-5), Block(fault, eps), nn.Linear(16, 20))


@pytest.fixture
def record(tmp_path: Path) -> Run:
    """`record("name", fault=..., level=...)` trains for two steps and returns the folder of the dump."""

    def run(name: str, fault: Fault | None = None, eps: float = 1e-5, lr: float = 0.1, **options: Any) -> Path:
        torch.manual_seed(0)
        model = tiny_model(fault, eps)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with capture(tmp_path / name, **{"level": "ops", **options}):
            for _ in range(2):
                tokens = torch.randint(0, 20, (4, 6))
                loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return tmp_path / name

    return run
