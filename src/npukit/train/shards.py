"""Tensors of which each rank holds a part."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(value: Tensor) -> Tensor:
    """What this rank holds of a tensor, detached: all of it where nothing is shared."""
    value = value.detach()
    return value.to_local() if isinstance(value, DTensor) else value
