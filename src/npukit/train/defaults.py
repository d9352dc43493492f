"""What a Trainer does with batches and models unless it is told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accelerate.utils import find_batch_size
from safetensors.torch import save_file
from torch import Tensor, nn


def rows(batch: Any) -> int:
    """How many rows a batch has: the weight of its loss."""
    return int(find_batch_size(batch))


def save_weights(model: nn.Module, weights: dict[str, Tensor], folder: Path) -> None:
    """Write the weights as safetensors; of names that share one tensor the first is kept."""
    own = {value.data_ptr(): name for name, value in reversed(weights.items())}
    save_file({name: weights[name].contiguous() for name in sorted(own.values())}, folder / "model.safetensors")
