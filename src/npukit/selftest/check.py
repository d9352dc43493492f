"""One check of the self-test: what it runs, and which of the shipped results it is held against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DeviceCheck:
    """A function that computes something on a device; it raises where the result is wrong in itself."""

    name: str
    run: Callable[[torch.device], Sequence[Tensor | None]]
    key: str = ""  # of the shipped result; without one, it is enough that nothing was raised
    dtype: torch.dtype | None = None  # whose tolerance holds
