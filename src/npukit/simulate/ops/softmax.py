"""Fused softmaxes with masks, and the ops that merge attention results over parts of the keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .registry import kernel


def _upper(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)


@kernel("npu_scaled_masked_softmax")
def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float = 1.0, fixed_triu_mask: bool = False) -> Tensor:
    """softmax(x scale), where a masked score counts as -10000: a row that is masked altogether comes out even."""
    hide = _upper(x) if fixed_triu_mask else mask.bool()
    return (x.float() * scale).masked_fill(hide, -10000.0).softmax(-1).to(x.dtype)


@kernel("npu_scaled_masked_softmax_backward")
def scaled_masked_softmax_backward(
    y_grad: Tensor, y: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
) -> Tensor:
    """dx = scale y (g - sum(g y)), zero where masked."""
    hide = _upper(y) if fixed_triu_mask else mask.bool()
    return (_softmax_gradient(y, y_grad) * scale).masked_fill(hide, 0.0).to(y_grad.dtype)


@kernel("npu_masked_softmax_with_rel_pos_bias")
def masked_softmax_with_rel_pos_bias(
    x: Tensor,
    atten_mask: Tensor | None,
    relative_pos_bias: Tensor,
    scale_value: float = 1.0,
    inner_precision_mode: int = 0,
) -> Tensor:
    """softmax(x scale + mask + bias): here the mask holds numbers to add."""
    scores = x.float() * scale_value + relative_pos_bias.float()
    return (scores if atten_mask is None else scores + atten_mask.float()).softmax(-1).to(x.dtype)


@kernel("npu_attn_softmax_")
def attn_softmax_(x: Tensor) -> Tensor:
    """softmax over the last dimension, written over x."""
    return x.copy_(x.float().softmax(-1))


@kernel("npu_attn_softmax_backward_")
def attn_softmax_backward_(y: Tensor, grad_output: Tensor, values: Tensor) -> Tensor:
    """The scores' gradient from that of softmax(scores) v, written over y, which held softmax(scores)."""
    return y.copy_(_softmax_gradient(y, grad_output.float() @ values.float().mT))


def _softmax_gradient(y: Tensor, grad: Tensor) -> Tensor:
    y, grad = y.float(), grad.float()
    return y * (grad - (grad * y).sum(-1, keepdim=True))


@kernel("npu_attention_update")
def attention_update(lse: Sequence[Tensor], local_out: Sequence[Tensor], update_type: int) -> tuple[Tensor, Tensor]:
    """Outputs over parts of the keys as one, weighted by exp(lse), and the lse of the whole."""
    parts = torch.stack(list(lse))
    whole = parts.logsumexp(0)
    weights = (parts - whole).exp().unsqueeze(-1)
    out = (torch.stack([x.float() for x in local_out]) * weights).sum(0).to(local_out[0].dtype)
    return out, whole


@kernel("npu_ring_attention_update")
def ring_attention_update(
    prev_attn_out: Tensor,
    prev_softmax_max: Tensor,
    prev_softmax_sum: Tensor,
    cur_attn_out: Tensor,
    cur_softmax_max: Tensor,
    cur_softmax_sum: Tensor,
    *,
    actual_seq_qlen: Tensor | None = None,
    input_layout: str = "SBH",
    input_softmax_layout: str = "",
) -> tuple[Tensor, Tensor, Tensor]:
    """Two results of npu_fusion_attention over different keys as one: outputs weighted by exp(max) sum."""
    if input_layout == "TND" and input_softmax_layout != "TND":
        raise NotImplementedError(
            "The simulated npu_ring_attention_update takes layout TND with input_softmax_layout TND only."
        )
    top = prev_softmax_max.maximum(cur_softmax_max)
    prev = prev_softmax_sum * (prev_softmax_max - top).exp()
    cur = cur_softmax_sum * (cur_softmax_max - top).exp()
    total = prev + cur
    out = [
        x.float().unflatten(-1, (weight.size(1), -1)) * (weight / total)[..., :1].permute(2, 0, 1, 3)
        if input_layout == "SBH"
        else x.float() * (weight / total)[..., :1]
        for x, weight in ((prev_attn_out, prev), (cur_attn_out, cur))
    ]
    return (out[0] + out[1]).reshape(prev_attn_out.shape).to(prev_attn_out.dtype), top, total
