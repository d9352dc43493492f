"""NaN and Inf end a run with the step, the rows and the module, before they spoil the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.train.data import Batch
from npukit.train.parallel import Parallel
from npukit.train.trouble import first_nonfinite


def refuse_nonfinite_loss(
    parallel: Parallel, step: int, value: float, loss: Callable[[nn.Module, Any], Tensor], batches: Sequence[Batch]
) -> None:
    """All ranks see the same value; each looks for its cause in its own batches."""
    if math.isfinite(value):
        return

    def again(model: nn.Module, content: Any) -> Tensor:
        with parallel.autocast():
            found = loss(model, content)
        # Ranks that share weights must not go backward alone.
        return found.detach().requires_grad_() if parallel.sharded else found

    for batch in batches:
        cause = first_nonfinite(parallel.module, again, parallel.move(batch.content))
        if not cause.startswith("Computed once more"):
            break
    raise NpukitError(
        f"The loss is {value} at step {step}. Rank {parallel.rank}, rows {_few(batch.numbers)} of the data: {cause}"
    )


def refuse_nonfinite_gradient(parallel: Parallel, step: int, norm: float, rows: Sequence[int]) -> None:
    """The gradient's norm of a step that is over. In fp16 an Inf is usual: that step was left out."""
    if not math.isfinite(norm) and parallel.dtype != torch.float16:
        raise NpukitError(
            f"The gradient of step {step} is {norm}, though its loss was finite, and the weights are spoilt. Rank "
            f"{parallel.rank} computed rows {_few(rows)} of the data. Go on from the last checkpoint with a lower "
            "learning_rate, or with precision: fp32."
        )


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (" and others" if len(numbers) > 8 else "")
