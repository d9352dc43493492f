"""Dropout masks that depend on a seed and an offset alone, so that a backward pass can make its forward's again."""

from __future__ import annotations

import torch
from torch import Tensor

from .registry import generator

_OFFSET_STEP = 12
"""What CANN asks of the generator for one mask, rounded up to the multiple of four that an offset must be."""


def draw_seed() -> tuple[int, int]:
    """The NPU's seed and offset, moving the offset on; a seed drawn from torch's own where there is no NPU."""
    if hasattr(torch, "npu") and torch.npu.is_initialized():
        npu = torch.npu.default_generators[torch.npu.current_device()]
        seed, offset = npu.initial_seed(), npu.get_offset()
        npu.set_offset(offset + _OFFSET_STEP)
        return seed, offset
    return int(torch.randint(2**62, (), generator=generator())), 0


def keep_mask(count: int, keep_prob: float, seed: int, offset: int) -> Tensor:
    """`count` booleans, True with probability keep_prob: the same for the same seed and offset."""
    # A CPU generator uses 32 bits of its seed; the upper ones of a product depend on all that went into it.
    mixed = (seed * 0x9E3779B97F4A7C15 + offset) * 0xBF58476D1CE4E5B9 % 2**64 >> 32
    return torch.rand(count, generator=torch.Generator().manual_seed(mixed)) < keep_prob


def pack(keep: Tensor) -> Tensor:
    """One bit an element, the first in a byte's lowest, padded with zeros to 128 bits: the form of CANN's masks."""
    bits = torch.nn.functional.pad(keep.flatten().to(torch.uint8), (0, -keep.numel() % 128)).unflatten(0, (-1, 8))
    return (bits << torch.arange(8, dtype=torch.uint8, device=keep.device)).sum(-1, dtype=torch.uint8)


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first `count` booleans of a packed mask."""
    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return bits.flatten()[:count].bitwise_and(1).bool()
