"""Choosing the next token: logits limited to the most probable ones, and one of these drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from .common import wide
from .registry import generator as drawn_generator
from .registry import kernel

_MAX_KEPT = 1024


@kernel("npu_top_k_top_p")
def top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Logits with -inf for all but the k largest, and of these all but the most probable that add up to p."""
    values, order = wide(logits).sort(dim=-1, stable=True)
    if k is not None:
        lowest = values.gather(1, (values.shape[1] - k.long()).unsqueeze(1))
        values = torch.where(values < lowest, -torch.inf, values)
    if p is not None:
        below = values.softmax(-1).cumsum(-1) <= 1 - wide(p).unsqueeze(1)
        below[:, -1] = False
        values = torch.where(below, -torch.inf, values)
    return torch.empty_like(values).scatter(-1, order, values).to(logits.dtype)


def _kept(
    values: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, most: int, is_logits: bool
) -> tuple[Tensor, Tensor]:
    """Of rows that fall: which stay, and the probabilities among those that top_k lets through.

    A k below 1 or above `most` counts as none given, and so do p from 1 on and a min_p of 0 or less.
    """
    rank = torch.arange(values.size(1))
    k = torch.where((top_k >= 1) & (top_k <= most), top_k, values.size(1))
    keep = rank < k.unsqueeze(1)
    probabilities = values.masked_fill(~keep, -torch.inf).softmax(-1) if is_logits else values * keep
    p = top_p.float().unsqueeze(1)
    keep &= (probabilities.cumsum(-1) - probabilities < p) | (p >= 1)
    if is_logits:
        probabilities[:, 0].masked_fill_(p.squeeze(1) <= 0, 1.0)
    least = min_p.float().unsqueeze(1)
    keep &= (probabilities >= probabilities[:, :1] * least) & (least < 1) | (least <= 0)
    keep[:, 0] = True
    return keep, probabilities


@kernel("npu_top_k_top_p_sample")
def top_k_top_p_sample(
    logits: Tensor, top_k: Tensor, top_p: Tensor, q: Tensor | None = None, eps: float = 1e-8,
    is_need_logits: bool = False, top_k_guess: int = 32, min_ps: Tensor | None = None, ks_max: int = _MAX_KEPT,
    input_is_logits: bool = True, post_sample: str = "qSample", generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A token a row, out of what top_k, top_p and min_ps leave over; and, if wanted, the logits that are left.

    `qSample` takes the largest probability / q (q exponential noise in the order of falling probability, as sorted by
    the steps that were not skipped), `multiNomial` draws, and anything else or no q takes the most probable.
    """
    rows, words = logits.shape
    chosen = logits.new_empty(rows, dtype=torch.int64)
    left = logits.new_empty(rows, words, dtype=torch.float32)
    if logits.is_meta:
        return chosen, left
    least = logits.new_zeros(rows) if min_ps is None else min_ps
    most = min(-(-ks_max // 8) * 8, _MAX_KEPT, words)
    values, order = logits.float().sort(dim=-1, descending=True, stable=True)
    keep, probabilities = _kept(values, top_k, top_p, least, most, input_is_logits)
    as_given = ((top_k < 1) | (top_k > most)) & (top_p >= 1) & (least < 1)  # nothing was sorted there
    back = torch.where(as_given.unsqueeze(1), order.argsort(-1), torch.arange(words))
    order, keep, probabilities = (x.gather(1, back) for x in (order, keep, probabilities))
    probabilities = probabilities.masked_fill(~keep, 0.0)
    if post_sample == "multiNomial":
        place = torch.multinomial(probabilities, 1, True, generator=drawn_generator(generator))
    elif post_sample == "qSample" and q is not None:
        noise = q.gather(1, (keep.cumsum(-1) - 1).clamp(min=0))
        place = (probabilities / (noise.abs() + eps)).argmax(-1, keepdim=True)
    else:
        place = probabilities.argmax(-1, keepdim=True)
    chosen.copy_(order.gather(1, place).squeeze(1))
    if is_need_logits:
        left.fill_(-torch.inf if input_is_logits else 0.0)
        left.scatter_(1, order, torch.where(keep, logits.float().gather(1, order), left))
    return chosen, left
