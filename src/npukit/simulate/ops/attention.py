"""npu_fusion_attention in its three versions, with their gradients: the attention of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .attention_call import AttentionCall, backward, forward
from .dropout_mask import draw_seed, keep_mask, unpack
from .registry import kernel

_POSITIONAL = (
    "pse", "padding_mask", "atten_mask", "scale", "keep_prob", "pre_tockens", "next_tockens", "inner_precise",
    "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode", "gen_mask_parallel", "sync", "softmax_layout",
    "sink", "dropout_mask", "seed", "offset",
)  # fmt: skip
"""The arguments after input_layout, in versions 1 and 3; version 2 takes all of its by keyword."""


@kernel("npu_fusion_attention")
def fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """dropout(softmax(mask(scale (q k^T + pse)))) v; in a mask 1 hides, and scale is 1 unless given, not 1/sqrt(d).

    Also the softmax's row maxima and sums, (batch, head, query, 8) in fp32, an empty tensor, and seed, offset and
    length of the dropout mask. Without a mask every query sees every key, whatever the sparse mode says.
    """
    arguments = dict(zip(_POSITIONAL, args, strict=False)) | kwargs
    call = AttentionCall.of(head_num, input_layout, arguments)
    seed, offset, mask = (arguments.get(name) for name in ("seed", "offset", "dropout_mask"))
    if call.keep_prob < 1 and mask is None:
        seed, offset = draw_seed()
    count = call.elements(query, key)
    keep = _keep(query, call, seed, offset, count) if mask is None else unpack(mask, count)
    return *forward(query, key, value, call, keep), seed or 0, offset or 0, count


@kernel("npu_fusion_attention_grad")
def fusion_attention_grad(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, **kwargs: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, pse and sink; the weights are exp(score - softmax_max) / softmax_sum."""
    call = AttentionCall.of(head_num, input_layout, kwargs)
    keep = _keep(query, call, kwargs.get("seed"), kwargs.get("offset"), call.elements(query, key))
    saved = kwargs["softmax_max"], kwargs["softmax_sum"], kwargs["attention_in"]
    return backward(query, key, value, dy, call, keep, *saved)


@kernel("npu_fusion_attention_v2")
def fusion_attention_v2(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, **kwargs: Any
) -> tuple[Any, ...]:
    """As the first version; query_rope and key_rope lengthen the heads of query and key.

    pse_type 0 adds pse after scaling, 1 before it; 2 and 3 take ALiBi slopes, by distance or its square root.
    """
    query = _with_rope(query, kwargs.get("query_rope"), input_layout)
    key = _with_rope(key, kwargs.get("key_rope"), input_layout)
    return fusion_attention(query, key, value, head_num, input_layout, **kwargs)


@kernel("npu_fusion_attention_grad_v2")
def fusion_attention_grad_v2(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, **kwargs: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, pse, query_rope, key_rope and sink."""
    q = _with_rope(query, kwargs.get("query_rope"), input_layout)
    k = _with_rope(key, kwargs.get("key_rope"), input_layout)
    dq, dk, dv, dpse, dsink = fusion_attention_grad(q, k, value, dy, head_num, input_layout, **kwargs)
    assert dq is not None and dk is not None
    dq_rope = dk_rope = None
    if kwargs.get("query_rope") is not None:
        dq, dq_rope = (x.contiguous() for x in dq.split((query.size(-1), dq.size(-1) - query.size(-1)), -1))
        dk, dk_rope = (x.contiguous() for x in dk.split((key.size(-1), dk.size(-1) - key.size(-1)), -1))
    return dq, dk, dv, dpse, dq_rope, dk_rope, dsink


@kernel("npu_fusion_attention_v3")
def fusion_attention_v3(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *args: Any, **kwargs: Any
) -> tuple[Tensor, ...]:
    """As the first version, with seed and offset in tensors and lengths as tensors: what F.sdpa calls on an NPU."""
    *results, seed, offset, _ = fusion_attention(query, key, value, head_num, input_layout, *args, **kwargs)
    numbers = (torch.empty(1, dtype=torch.long, device=query.device).fill_(x) for x in (seed, offset))
    return *results, *numbers


@kernel("npu_fusion_attention_grad_v3")
def fusion_attention_grad_v3(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, **kwargs: Any
) -> tuple[Tensor | None, ...]:
    """As the first version's gradient."""
    return fusion_attention_grad(query, key, value, dy, head_num, input_layout, **kwargs)


def _keep(query: Tensor, call: AttentionCall, seed: Any, offset: Any, count: int) -> Tensor | None:
    """The dropout mask of seed and offset; None where nothing is dropped, or nothing computed."""
    if call.keep_prob >= 1 or query.is_meta:
        return None
    return keep_mask(count, call.keep_prob, int(seed or 0), int(offset or 0))


def _with_rope(x: Tensor, rope: Tensor | None, layout: str) -> Tensor:
    """Each head of x followed by its rotary part; a layout with heads folded into depth cannot have one."""
    if rope is None:
        return x
    if layout.upper() in ("BSH", "SBH"):
        raise NotImplementedError(f"npu_fusion_attention_v2 takes query_rope and key_rope in TND, not in {layout}.")
    return torch.cat((x, rope), -1)
