"""The loss function that a Trainer is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from npukit.errors import NpukitError

Figures = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Figures]]


def one_number(loss: Loss) -> Callable[[nn.Module, Any], tuple[Tensor, Figures]]:
    """The loss as a tensor without dimensions, and the figures beside it; what is no single number is refused."""

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
