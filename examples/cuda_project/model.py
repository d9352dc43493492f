"""A small residual network."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


class Classifier(nn.Module):
    def __init__(self, classes: int, width: int = 32, depth: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.blocks = nn.Sequential(*[Block(width, dropout) for _ in range(depth)])
        self.last = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(self.first(x)))


def class_weights(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Rare classes count for more."""
    counts = torch.zeros(classes).cuda()
    counts += torch.bincount(labels.cuda(), minlength=classes)
    return counts.sum() / (classes * counts.clamp(min=1))
