"""Rotary position embeddings: x cos + rotate(x) sin, in fp32 inside, the result in x's dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .registry import kernel


def rotate(x: Tensor, mode: str = "half") -> Tensor:
    """A quarter turn of pairs (a, b) to (-b, a): of the two halves, of each half's halves, or of neighbours."""
    if mode == "quarter":
        return rotate(x.unflatten(-1, (2, -1))).flatten(-2)
    if mode == "half":
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _embed(x: Tensor, cos: Tensor, sin: Tensor, mode: str = "half") -> Tensor:
    wide = x.float()
    return (wide * cos.float() + rotate(wide, mode) * sin.float()).to(x.dtype)


@kernel("npu_rotary_mul")
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half", matrix: Tensor | None = None) -> Tensor:
    """x cos + rotate(x) sin; cos and sin broadcast to x, and `matrix` stands in for the rotation if given."""
    if matrix is None:
        return _embed(x, cos, sin, rotary_mode)
    return (x.float() * cos.float() + x.float() @ matrix.float() * sin.float()).to(x.dtype)


@kernel("npu_rotary_mul_backward")
def rotary_mul_backward(
    grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half"
) -> tuple[Tensor, Tensor, Tensor]:
    """dx = g cos - rotate(g sin), since a quarter turn back is minus one; all three gradients in x's dtype."""
    wide_grad, wide_x = grad.float(), x.float()
    dx = wide_grad * cos.float() - rotate(wide_grad * sin.float(), rotary_mode)
    dcos = (wide_grad * wide_x).sum_to_size(cos.shape)
    dsin = (wide_grad * rotate(wide_x, rotary_mode)).sum_to_size(sin.shape)
    return dx.to(x.dtype), dcos.to(x.dtype), dsin.to(x.dtype)


@kernel("npu_apply_rotary_pos_emb")
def apply_rotary_pos_emb(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str = "BSND", rotary_mode: str = "half"
) -> tuple[Tensor, Tensor]:
    """rotary_mul of query and key, written over both: the op works in place although its schema does not say so."""
    return query.copy_(_embed(query, cos, sin, rotary_mode)), key.copy_(_embed(key, cos, sin, rotary_mode))


@kernel("npu_interleave_rope")
def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Sorts neighbours into halves (even ones first), then rotates the halves; the result stays sorted."""
    return _embed(torch.cat((x[..., ::2], x[..., 1::2]), -1), cos, sin)


@kernel("npu_mrope")
def mrope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    cos_sin_cache: Tensor,
    head_size: int,
    *,
    mrope_section: Sequence[int] | None = None,
    rotary_mode: str | None = "half",
    cache_mode: str | None = "default",
) -> tuple[Tensor, Tensor]:
    """Rotary embedding with cos and sin of each token's position looked up in a cache that holds both, side by side.

    Positions of several axes (rows) take turns over the depth: by sections, or interleaved from the second one on.
    """
    cos, sin = cos_sin_cache[positions.long()].float().chunk(2, -1)
    if positions.dim() == 2:
        sections = list(mrope_section or ())
        cos, sin = (_by_axis(x, sections, interleaved=cache_mode == "interleave") for x in (cos, sin))
    mode = "half" if rotary_mode == "half" else "interleave"
    cos, sin = ((x.repeat(1, 2) if mode == "half" else x.repeat_interleave(2, -1)).unsqueeze(1) for x in (cos, sin))
    return _embed_heads(query, cos, sin, head_size, mode), _embed_heads(key, cos, sin, head_size, mode)


def _by_axis(table: Tensor, sections: Sequence[int], interleaved: bool) -> Tensor:
    """(token, depth) from (axis, token, depth): which axis a depth follows."""
    if not interleaved:
        return torch.cat([part[axis] for axis, part in enumerate(table.split(list(sections), -1))], -1)
    mixed = table[0].clone()
    for axis in (1, 2):
        turns = slice(axis, sections[1] * 3, 3)
        mixed[:, turns] = table[axis][:, turns]
    return mixed


def _embed_heads(x: Tensor, cos: Tensor, sin: Tensor, head_size: int, mode: str) -> Tensor:
    """The first part of every head is rotated, as far as cos reaches; the rest passes."""
    heads = x.unflatten(-1, (-1, head_size))
    turned = _embed(heads[..., : cos.size(-1)], cos, sin, mode)
    return torch.cat((turned, heads[..., cos.size(-1) :]), -1).flatten(-2)
