"""Copy numbers from the device to the host while the device goes on computing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from npukit.launch.abilities import abilities


def fetch(tensor: Tensor) -> Callable[[], list[float]]:
    """Start the copy. The returned function waits for it, but not for work that was queued after it."""
    if not abilities(tensor.device).own_memory:
        return tensor.tolist
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    copied = torch.get_device_module(tensor.device).Event()
    copied.record()

    def read() -> list[float]:
        copied.synchronize()
        values: list[float] = host.tolist()
        return values

    return read
