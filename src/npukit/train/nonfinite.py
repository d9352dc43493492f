"""NaN and Inf end a run with the step, the rows and the module, before they spoil the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.precision.recompute import first_nonfinite
from npukit.report.report import few
from npukit.train.data import Batch, counting
from npukit.train.parallel import Parallel

NOT_AGAIN = (
    "Computed again, the batch gives finite values, so the cause is random (dropout, for example) or a hardware "
    "fault; feature_detection watches for the latter."
)
LOWEST_SCALE = 2.0**-10  # what overflows in fp16 even then is no matter of scale


def refuse_nonfinite_loss(
    parallel: Parallel, step: int, value: float, loss: Callable[[nn.Module, Any], Tensor], batches: Sequence[Batch]
) -> None:
    """All ranks see the same value; each looks for its cause in its own batches, and all tell the first one found."""
    if math.isfinite(value):
        return

    def again(model: nn.Module, content: Any) -> Tensor:
        with parallel.autocast():
            value = loss(model, content)
        # Ranks that share weights must not go backward alone.
        return value.detach().requires_grad_() if parallel.sharded else value

    causes = []
    for batch in counting(batches):
        cause = first_nonfinite(parallel.module, again, parallel.move(batch.content))
        sentence = f"Rank {parallel.rank}, rows {few(batch.numbers, most=8)} of the data: {cause or NOT_AGAIN}"
        causes.append((cause is None, sentence))
    _, sentence = min(parallel.gather(min(causes)))
    raise NpukitError(f"The loss is {value} at step {step}. {sentence}")


def refuse_nonfinite_gradient(parallel: Parallel, step: int, norm: float, rows: Sequence[int]) -> None:
    """The gradient's norm of a step that is over. In fp16 an Inf is usual: that step was left out."""
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
            "step is skipped, and nothing is learned. Look for a root or a norm at 0, or use precision: bf16 or fp32."
        )
