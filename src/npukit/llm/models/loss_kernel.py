"""Cross-entropy and likelihood of rows of logits as CUDA kernels that process a row while it is in the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def loss_and_gradient(logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """npukit.llm.models.loss.loss_and_gradient on CUDA. The gradient overwrites the logits."""
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
    of_label = tl.load(start + tl.maximum(label, 0)).to(tl.float32)  # before any thread writes the gradient over it
    highest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)  # sum of the exponentials after subtracting the maximum
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        some = tl.load(start + place, mask=place < columns, other=0.0).to(tl.float32)
        some = tl.where(place < words, some, -float("inf"))
        higher = tl.maximum(highest, tl.max(some))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(some - higher))
        highest = higher
    log_total = highest + tl.log(total)
    tl.store(losses + row, tl.where(counts, log_total - of_label, 0.0))
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        some = tl.load(start + place, mask=place < columns, other=0.0).to(tl.float32)
        share = tl.where(place < words, tl.exp(some - log_total), 0.0)
        gradient = tl.where(counts, share - tl.where(place == label, 1.0, 0.0), 0.0)
        tl.store(start + place, gradient, mask=place < columns)


def likelihood_and_gradient(
    logits: Tensor, labels: Tensor, words: int, temperature: float, wants_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """npukit.llm.models.loss.likelihood_and_gradient on CUDA. The gradient overwrites the logits."""
    rows, columns = logits.shape
    logprobs, entropies = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
    _likelihood[(rows,)](
        logits, labels, logprobs, entropies, temperature, columns, words, GRADIENT=wants_gradient, BLOCK=_BLOCK,
        num_warps=8,
    )  # fmt: skip
    return logprobs, entropies, logits if wants_gradient else None


@triton.jit  # type: ignore[untyped-decorator]
def _likelihood(  # type: ignore[no-untyped-def]
    logits, labels, logprobs, entropies, temperature, columns, words, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    label = tl.maximum(tl.load(labels + row), 0)
    of_label = tl.load(start + label).to(tl.float32) / temperature  # before any thread writes the gradient over it
    highest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)  # sum of the exponentials after subtracting the maximum
    weighted = tl.full((), 0.0, tl.float32)  # sum of the same times their exponents
    for first in range(0, columns, BLOCK):
        place = first + tl.arange(0, BLOCK)
        there = place < words
        some = tl.load(start + place, mask=there, other=0.0).to(tl.float32) / temperature
        higher = tl.maximum(highest, tl.max(tl.where(there, some, -float("inf"))))
        sunk = tl.where(total > 0, highest - higher, 0.0)  # nothing to rescale before the first block
        shrink = tl.exp(sunk)
        below = some - higher
        shares = tl.where(there, tl.exp(below), 0.0)
        weighted = shrink * (weighted + sunk * total) + tl.sum(shares * below)
        total = shrink * total + tl.sum(shares)
        highest = higher
    log_total = highest + tl.log(total)
    tl.store(logprobs + row, of_label - log_total)
    tl.store(entropies + row, tl.log(total) - weighted / total)
    if GRADIENT:
        for first in range(0, columns, BLOCK):
            place = first + tl.arange(0, BLOCK)
            some = tl.load(start + place, mask=place < words, other=0.0).to(tl.float32) / temperature
            share = tl.where(place < words, tl.exp(some - log_total), 0.0)
            gradient = (tl.where(place == label, 1.0, 0.0) - share) / temperature
            tl.store(start + place, gradient, mask=place < columns)
