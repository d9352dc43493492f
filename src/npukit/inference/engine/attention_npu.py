"""Attention over the paged cache with torch_npu's fused operators. Lengths are numbers of the host, as these want."""

from __future__ import annotations

from itertools import accumulate

import torch
import torch.nn.functional as F
import torch_npu
from torch import Tensor

from npukit.inference.engine.paged import PagedCall, PagedRows, Prefill, read, write
from npukit.llm.models.attention import NPU_CAUSAL, causal_mask

_LEAST_HEADS = 32  # of latent attention; the number of heads is a power of two


def attend_rows(call: PagedCall, rows: PagedRows) -> Tensor:
    """One query a row, in the layout (BSH) for which paging is documented on every card."""
    _write(call)
    heads = call.query.shape[1]
    if call.is_latent:
        padded = F.pad(call.query, (0, 0, 0, max(_LEAST_HEADS, 1 << (heads - 1).bit_length()) - heads))
        query, rotated = torch.split(padded, [call.key_cache.shape[-1], call.value_cache.shape[-1]], -1)
        caches = call.key_cache, call.key_cache
        rotation = {"query_rope": rotated.flatten(1).unsqueeze(1), "key_rope": call.value_cache.flatten(2)}
    else:
        query, caches, rotation = call.query, (call.key_cache, call.value_cache), {}
    result: Tensor = torch_npu.npu_fused_infer_attention_score(
        query.flatten(1).unsqueeze(1),
        *(cache.flatten(2) for cache in caches),
        num_heads=query.shape[1],
        num_key_value_heads=call.key_cache.shape[2],
        scale=call.scale,
        input_layout="BSH",
        block_table=rows.tables,
        block_size=call.key_cache.shape[1],
        actual_seq_lengths_kv=rows.host_lengths,
        **rotation,
    )[0]
    return result.view_as(query)[:, :heads]


def fetch(call: PagedCall, prompts: Prefill) -> tuple[Tensor, Tensor]:
    """Write with torch_npu's operator, read with torch's."""
    _write(call)
    return read(call, lambda cache: cache.flatten(0, 1)[prompts.slots])


def attend_prefill(
    query: Tensor, keys: Tensor, values: Tensor, prompts: Prefill, scale: float, window: int | None
) -> Tensor:
    """The sequences one behind the other (TND)."""
    result: Tensor = torch_npu.npu_fusion_attention(
        query,
        keys,
        values,
        query.shape[1],
        "TND",
        atten_mask=causal_mask(query.device),
        scale=scale,
        sparse_mode=NPU_CAUSAL,
        actual_seq_qlen=list(accumulate(prompts.new)),
        actual_seq_kvlen=list(accumulate(prompts.total)),
    )[0]
    return result


def _has_plain_caches() -> bool:
    """Whether this torch_npu's operator writes caches in torch's layout: until 2.6, it knows only a card's own."""
    scatter = getattr(torch.ops.npu, "npu_scatter_pa_kv_cache", None)
    return scatter is not None and any(argument.name == "cache_mode" for argument in scatter.default._schema.arguments)


_PLAIN_CACHES = _has_plain_caches()


def _write(call: PagedCall) -> None:
    if _PLAIN_CACHES and call.key_scales is None:
        tokens, caches = (call.key.contiguous(), call.value.contiguous()), (call.key_cache, call.value_cache)
        torch_npu.npu_scatter_pa_kv_cache(*tokens, *caches, call.slots, cache_mode="Norm")
    else:
        write(call)
