"""What a Trainer does by default with batches and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.precision.nest import row_count


def rows(batch: Any) -> int:
    """The number of rows of a batch, which is the weight of its loss."""
    count = row_count(batch)
    if count is None:
        kind = type(batch).__name__
        raise NpukitError(
            f"Cannot tell how many rows a batch ({kind}) has: pass Trainer a weight function that counts them."
        )
    return count


def save_weights(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Write the weights as safetensors; a tensor with several names is written under the first."""
    own = {id(value): name for name, value in reversed(weights.items())}
    save_file({name: weights[name].contiguous() for name in sorted(own.values())}, folder / "model.safetensors")
