"""The layouts of attention's tensors: B batch, S sequence, N head, D depth, H all heads' depths, T all tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

Lengths = Sequence[int] | Tensor | None
RAGGED = ("TND", "NTD")
"""Sequences of different length, end to end."""


def dense(x: Tensor, layout: str, heads: int) -> Tensor:
    """A view as (batch, head, sequence, depth); a layout without batches is one."""
    match layout:
        case "BNSD":
            return x
        case "BSND":
            return x.transpose(1, 2)
        case "BSH":
            return x.unflatten(2, (heads, x.size(2) // heads)).transpose(1, 2)
        case "SBH":
            return x.unflatten(2, (heads, x.size(2) // heads)).permute(1, 2, 0, 3)
        case "SH":
            return dense(x.unsqueeze(0), "BSH", heads)
        case "TND":
            return x.transpose(0, 1).unsqueeze(0)
        case "NTD" | "NSD":
            return x.unsqueeze(0)
    raise ValueError(f"The simulated NPU knows no attention with the input_layout {layout}; BSND is one that it knows.")


def undense(x: Tensor, layout: str) -> Tensor:
    """The inverse of `dense`, contiguous."""
    match layout:
        case "BSND":
            x = x.transpose(1, 2)
        case "BSH":
            x = x.transpose(1, 2).flatten(2)
        case "SBH":
            x = x.permute(2, 0, 1, 3).flatten(2)
        case "NBSD":
            x = x.transpose(0, 1)
        case "SH":
            x = x[0].transpose(0, 1).flatten(1)
        case "TND":
            x = x[0].transpose(0, 1)
        case "NTD" | "NSD":
            x = x[0]
    return x.contiguous()


def spans(totals: Lengths) -> list[slice]:
    """Running totals of lengths as slices; trailing zeros are sequences that take no part."""
    if isinstance(totals, Tensor):
        totals = [] if totals.is_meta else totals.tolist()
    ends = list(totals or ())
    return [slice(start, max(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
