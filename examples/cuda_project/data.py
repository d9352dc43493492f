"""Points on three spirals, made up from a seed: the same on every machine."""

from __future__ import annotations

import math

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

ARMS = 3


def spirals(points: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(ARMS, (points,), generator=generator)
    radius = torch.rand(points, generator=generator)
    angle = 4 * radius + arm * (2 * math.pi / ARMS) + 0.1 * torch.randn(points, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm)


def loader(points: int, batch: int, seed: int, world_size: int, rank: int) -> DataLoader:
    dataset = spirals(points, seed)
    sampler = DistributedSampler(dataset, world_size, rank, seed=seed) if world_size > 1 else None
    return DataLoader(dataset, batch, shuffle=sampler is None, sampler=sampler, pin_memory=True)
