"""One check of the self-test: what it runs, and the shipped result that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DeviceCheck:
    """A function that computes something on a device. It raises if the result is wrong in itself."""

    name: str
    run: Callable[[torch.device], Sequence[Tensor | None]]
    key: str = ""  # of the shipped result; without one, it suffices that nothing is raised
    dtype: torch.dtype | None = None  # the dtype that determines the tolerance
