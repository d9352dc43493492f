"""Train a model of your own: `npukit run train.py`. Every option is in config.yaml, every command in README.md."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from npukit.train import Trainer
from npukit.train.read import read_options

HERE = Path(__file__).parent


class Model(nn.Module):
    """Put your model here: any nn.Module. It never says which device it is on."""

    def __init__(self, width: int = 64, classes: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        classes: Tensor = self.head(self.layers(x))
        return classes


def made_up_data(rows: int, seed: int) -> TensorDataset:
    """Put your data set here: anything with len() and [], or an IterableDataset. This one is points on four spirals."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (rows,), generator=generator)
    radius = torch.rand(rows, generator=generator)
    angle = 5 * radius + labels * (torch.pi / 2) + 0.1 * torch.randn(rows, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean loss of a batch, whatever a batch of yours is."""
    points, labels = batch
    return nn.functional.cross_entropy(model(points), labels)


def main() -> None:
    options = read_options(HERE / "config.yaml")
    torch.manual_seed(options.seed)
    trainer = Trainer(Model(), options, made_up_data(1024, seed=1), made_up_data(256, seed=2), loss=loss)
    sys.exit(trainer.train().exit_code)


if __name__ == "__main__":  # processes that load data import this file
    main()
