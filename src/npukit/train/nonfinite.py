"""Ends a run with NaN or Inf before it reaches the weights, and names the step, the rows and the module."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.precision.recompute import first_nonfinite
from npukit.report.report import few
from npukit.train.data import Batch, with_stand_ins
from npukit.train.parallel import Parallel

NOT_AGAIN = (
    "Computed again, the batch gives finite values, so the cause is random (dropout, for example) or a hardware "
    "fault; feature_detection watches for the latter."
)
LOWEST_SCALE = 2.0**-10  # an overflow in fp16 below it has another cause than the loss scale


def refuse_nonfinite_loss(
    parallel: Parallel, step: int, value: float, loss: Callable[[nn.Module, Any], Tensor], batches: Sequence[Batch]
) -> None:
    """Raise on all ranks, which see the same loss, and name the first cause that one finds in its batches."""
    if math.isfinite(value):
        return

    def again(model: nn.Module, content: Any) -> Tensor:
        with parallel.autocast():
            value = loss(model, content)
        # A rank that shares its weights with others must not run a backward pass alone.
        return value.detach().requires_grad_() if parallel.sharded else value

    causes = []
    for batch in with_stand_ins(batches):
        cause = first_nonfinite(parallel.module, again, parallel.move(batch.content))
        sentence = f"Rank {parallel.rank}, rows {few(batch.rows, most=8)} of the data: {cause or NOT_AGAIN}"
        causes.append((cause is None, sentence))
    _, sentence = min(parallel.gather(min(causes)))
    raise NpukitError(f"The loss is {value} at step {step}. {sentence}")


def refuse_nonfinite_gradient(parallel: Parallel, step: int, norm: float, rows: Sequence[int]) -> None:
    """Check the gradient norm of the last step. In fp16 Inf is normal: the scaler skipped that step."""
    if math.isfinite(norm):
        return
    if parallel.dtype != torch.float16:
        raise NpukitError(
            f"The gradient of step {step} is {norm}, although its loss was finite, and the weights are lost. Rank "
            f"{parallel.rank} computed rows {few(rows, most=8)} of the data. Resume from the last checkpoint with a "
            "lower learning_rate, or with precision: fp32."
        )
    scale = float(parallel.loss_scale)
    if scale < LOWEST_SCALE:
        raise NpukitError(
            f"The gradient of step {step} is still {norm}, although the gradient scaler fell to {scale:.1g}: every "
            "step is skipped, and nothing is learned. Look for a square root or a norm of 0, or use precision: bf16 "
            "or fp32."
        )
