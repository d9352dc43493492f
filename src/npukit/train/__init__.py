"""The training engine: any model, any data, on NPU, GPU or CPU, one device or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npukit.train.options import TrainOptions

if TYPE_CHECKING:
    from npukit.train.trainer import Trainer

__all__ = ["TrainOptions", "Trainer"]


def __getattr__(name: str) -> Any:
    """Trainer imports torch; the options do not, so that configurations can be checked without it."""
    if name == "Trainer":
        from npukit.train.trainer import Trainer

        return Trainer
    raise AttributeError(name)
