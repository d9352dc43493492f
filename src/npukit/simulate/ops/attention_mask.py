"""Which query may see which key: CANN's sparse modes and masks, where 1 in a mask means "does not see"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pattern:
    """Either `causal` (query i sees keys 0..i) or `drop`, booleans that broadcast to (batch, head, query, key)."""

    causal: bool = False
    drop: Tensor | None = None


def pattern(
    mask: Tensor | None,
    mode: int,
    before: int,
    after: int,
    queries: int,
    keys: int,
    prefix: Sequence[int] | None = None,
) -> Pattern:
    """The pattern of one sparse mode; without a mask the mode is ignored and every query sees every key.

    0 the mask, and a band from the top left; 1 and 5 the mask; 2 causal from the top left; 3 from the bottom right;
    4 a band from the bottom right; 6 as 3, and everyone sees the first `prefix[batch]` keys. Modes 2, 3, 4 and 6 take
    a compressed mask of fixed size, whose content is known and is not read.
    """
    if mask is None:
        return Pattern()
    end = keys - queries
    low, high = {
        0: (-before, after),
        2: (-queries, 0),
        3: (-queries, end),
        4: (end - before, end + after),
        6: (-queries, end),
    }.get(mode, (-queries, keys))
    drop = mask[..., :queries, :keys].bool() if mode in (0, 1, 5) else None
    if low <= 1 - queries and high >= keys - 1:
        return Pattern(drop=drop)
    if drop is None and low <= 1 - queries and high == 0 and mode != 6:
        return Pattern(causal=True)
    outside = _outside(low, high, queries, keys, mask.device)
    if mode == 6 and prefix:
        first = torch.tensor(prefix, device=mask.device).view(-1, 1, 1, 1)
        outside = outside & (torch.arange(keys, device=mask.device) >= first)
    return Pattern(drop=outside if drop is None else drop | outside)


def _outside(low: int, high: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """True where key - query is not within [low, high]."""
    distance = torch.arange(keys, device=device) - torch.arange(queries, device=device).unsqueeze(1)
    return (distance < max(low, -queries)) | (distance > min(high, keys))
