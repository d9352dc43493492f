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
        found: Any = loss(model, batch)
        found, figures = found if isinstance(found, tuple) else (found, {})
        if not isinstance(found, Tensor) or found.numel() != 1:
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise NpukitError(
                f"loss returned {what}: it must return the mean loss of the batch as a tensor with one number."
            )
        return found.reshape(()), figures

    return checked
