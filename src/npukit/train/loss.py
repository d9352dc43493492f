"""The loss function of a Trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from npukit.errors import NpukitError

Figures = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Figures]]


def scalar_loss(loss: Loss) -> Callable[[nn.Module, Any], tuple[Tensor, Figures]]:
    """Wraps a loss function: its loss becomes a scalar tensor, with the further figures; anything else is an error."""

    def checked(model: nn.Module, batch: Any) -> tuple[Tensor, Figures]:
        value: Any = loss(model, batch)
        value, figures = value if isinstance(value, tuple) else (value, {})
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise NpukitError(
                f"loss returned {what}: it must return the mean loss of the batch as a tensor with one number."
            )
        return value.reshape(()), figures

    return checked
