"""npu_multi_head_attention: projections and attention in one op, of the days before npu_fusion_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .common import wide
from .dropout_mask import pack, unpack
from .linear import linear
from .registry import generator, kernel


def _heads(x: Tensor, length: int, heads: int) -> Tensor:
    """(batch, head, length, depth) from rows of batch x length."""
    return x.unflatten(0, (-1, length)).unflatten(-1, (heads, -1)).transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """The inverse of `_heads`."""
    return x.transpose(1, 2).flatten(2).flatten(0, 1)


@kernel("npu_multi_head_attention")
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    attn_mask: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    dropout_mask: Tensor | None,
    heads: int,
    depth: int,
    keys: int,
    queries: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor, ...]:
    """Wo dropout(softmax(q k^T / sqrt(d) + mask)) v; rows are batch x length, the mask is added, 1/sqrt(d) is built in.

    All but the softmax rounds to the inputs' dtype. Then what the backward needs: dropout bits, scaled q,
    k, v, the softmax, the softmax after dropout, the context.
    """
    q = _heads(linear(query, query_weight, query_bias) * depth**-0.5, queries, heads)
    k = _heads(linear(key, key_weight, key_bias), keys, heads)
    v = _heads(linear(value, value_weight, value_bias), keys, heads)
    weights = ((wide(q) @ wide(k).mT).to(q.dtype) + attn_mask).float().softmax(-1)
    if dropout_mask is None:
        drawn = (
            weights.new_empty(weights.numel()) if query.is_meta else torch.rand(weights.numel(), generator=generator())
        )
        dropout_mask = pack(drawn >= dropout_prob)
    kept = _dropped(weights, dropout_mask, dropout_prob).to(query.dtype)
    context = _rows((wide(kept) @ wide(v)).to(v.dtype))
    out = linear(context, out_proj_weight, out_proj_bias)
    softmax = weights if softmax_use_float else weights.to(query.dtype)
    bits = dropout_mask[: weights.numel() // 8].clone()
    return out, bits, q.contiguous(), k.contiguous(), v.contiguous(), softmax, kept, context


@kernel("npu_multi_head_attention_backward")
def multi_head_attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    value_weight: Tensor,
    out_proj_weight: Tensor,
    query_bias: Tensor | None,
    key_bias: Tensor | None,
    value_bias: Tensor | None,
    out_proj_bias: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax: Tensor,
    kept: Tensor,
    context: Tensor,
    grad: Tensor,
    dropout_mask: Tensor,
    heads: int,
    depth: int,
    keys: int,
    queries: int,
    dropout_prob: float,
    softmax_use_float: bool,
) -> tuple[Tensor, ...]:
    """Gradients of the four weights, of query, key and value, and of the four biases, these as (1, width)."""
    dcontext = _heads(grad.float() @ out_proj_weight.float(), queries, heads)
    dweights = _dropped(dcontext @ v.float().mT, dropout_mask, dropout_prob)
    softmax = softmax.float()
    dscores = softmax * (dweights - (dweights * softmax).sum(-1, keepdim=True))
    dq = _rows(dscores @ k.float()) * depth**-0.5
    dk = _rows(dscores.mT @ q.float())
    dv = _rows(kept.float().mT @ dcontext)
    layers: list[tuple[Any, ...]] = [
        (dq, query, query_weight),
        (dk, key, key_weight),
        (dv, value, value_weight),
        (grad.float(), context, out_proj_weight),
    ]
    of_weights = [(dy.mT @ x.float()).to(weight.dtype) for dy, x, weight in layers]
    of_inputs = [(dy @ weight.float()).to(x.dtype) for dy, x, weight in layers[:3]]
    of_biases = [dy.sum(0, keepdim=True).to(x.dtype) for dy, x, _ in layers]
    return *of_weights, *of_inputs, *of_biases


def _dropped(x: Tensor, bits: Tensor, p: float) -> Tensor:
    return x * unpack(bits, x.numel()).view(x.shape) / (1 - p) if p > 0 else x
