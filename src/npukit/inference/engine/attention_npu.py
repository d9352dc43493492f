"""Attention over the paged cache with torch_npu's fused operators. Lengths are numbers of the host, as these want."""

from __future__ import annotations

from itertools import accumulate

import torch_npu
from torch import Tensor

from npukit.inference.engine.paged import Batch, Decode, Prefill
from npukit.llm.models.attention import NPU_CAUSAL, causal_mask


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None,
) -> Tensor:
    """One query a sequence, in the layout (BSH) for which paging is documented on every card."""
    assert isinstance(batch.kind, Decode)
    _write(key, value, key_cache, value_cache, batch.slots)
    result: Tensor = torch_npu.npu_fused_infer_attention_score(
        query.flatten(1).unsqueeze(1),
        key_cache.flatten(2),
        value_cache.flatten(2),
        num_heads=query.shape[1],
        num_key_value_heads=key_cache.shape[2],
        scale=scale,
        input_layout="BSH",
        block_table=batch.kind.tables,
        block_size=key_cache.shape[1],
        actual_seq_lengths_kv=batch.kind.host_lengths,
    )[0]
    return result.view_as(query)


def prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    batch: Batch,
    scale: float,
    window: int | None,
) -> Tensor:
    """The sequences one behind the other (TND), their keys and values fetched from the cache."""
    assert isinstance(batch.kind, Prefill)
    _write(key, value, key_cache, value_cache, batch.slots)
    keys, values = (cache.flatten(0, 1)[batch.kind.slots] for cache in (key_cache, value_cache))
    result: Tensor = torch_npu.npu_fusion_attention(
        query,
        keys,
        values,
        query.shape[1],
        "TND",
        atten_mask=causal_mask(query.device),
        scale=scale,
        sparse_mode=NPU_CAUSAL,
        actual_seq_qlen=list(accumulate(batch.kind.new)),
        actual_seq_kvlen=list(accumulate(batch.kind.total)),
    )[0]
    return result


def _write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    torch_npu.npu_scatter_pa_kv_cache(
        key.contiguous(), value.contiguous(), key_cache, value_cache, slots, cache_mode="Norm"
    )
