"""The loss function that a Trainer is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from npukit.errors import NpukitError

Loss = Callable[[nn.Module, Any], Tensor]


def one_number(loss: Loss) -> Loss:
    """The loss as a tensor without dimensions; what is no single number is refused."""

    def checked(model: nn.Module, batch: Any) -> Tensor:
        found: Any = loss(model, batch)
        if not isinstance(found, Tensor) or found.numel() != 1:
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise NpukitError(
                f"loss returned {what}: it must return the mean loss of the batch as a tensor with one number."
            )
        return found.reshape(())

    return checked
