"""The cross-entropy of some rows of logits as one CUDA kernel, a row at a time, while the row is in the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def loss_and_gradient(logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """What npukit.llm.models.loss.loss_and_gradient computes; the gradient is written over the logits."""
    rows, columns = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _one_row[(rows,)](logits, labels, losses, columns, words, BLOCK=_BLOCK, num_warps=8)
    return losses.sum(), logits


@triton.jit  # type: ignore[untyped-decorator]
def _one_row(logits, labels, losses, columns, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    label = tl.load(labels + row)
    counts = label >= 0
    highest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)  # of the exponentials, each with the highest taken off
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        some = tl.load(start + place, mask=place < columns, other=0.0).to(tl.float32)
        some = tl.where(place < words, some, -float("inf"))
        higher = tl.maximum(highest, tl.max(some))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(some - higher))
        highest = higher
    log_total = highest + tl.log(total)
    of_label = tl.load(start + tl.maximum(label, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counts, log_total - of_label, 0.0))
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        some = tl.load(start + place, mask=place < columns, other=0.0).to(tl.float32)
        share = tl.where(place < words, tl.exp(some - log_total), 0.0)
        gradient = tl.where(counts, share - tl.where(place == label, 1.0, 0.0), 0.0)
        tl.store(start + place, gradient, mask=place < columns)
