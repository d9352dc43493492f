"""Attention over the paged cache, registered with transformers under its own name.

Each call writes the new tokens' keys and values to their slots, then attends to all of the sequence that is in the
cache. Every device has an implementation of its own; all compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from npukit.inference.engine.paged import PagedBatch, PagedCall, PagedRows, Prefill, write

AttendRows = Callable[[PagedCall, PagedRows], Tensor]
AttendPrefill = Callable[[PagedCall, Prefill], Tensor]


def register(kind: str, dtype: torch.dtype) -> str:
    """Register a device's attention with transformers, which then makes no mask for it; returns its name."""
    from transformers import AttentionInterface

    is_half = dtype in (torch.float16, torch.bfloat16)
    if kind == "cuda" and is_half:
        from npukit.inference.engine.attention_cuda import attend_prefill, attend_rows
    elif kind == "npu" and is_half:
        from npukit.inference.engine.attention_npu import attend_prefill, attend_rows
    else:
        kind, attend_rows, attend_prefill = "anywhere", rows_anywhere, prefill_anywhere
    name = f"npukit_paged_{kind}"
    AttentionInterface.register(name, partial(paged_attention, attend_rows, attend_prefill))
    return name


def paged_attention(
    attend_rows: AttendRows,
    attend_prefill: AttendPrefill,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    batch: PagedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query, key, value are [1, heads, tokens, size]; the result is [1, tokens, heads, size]."""
    query, key, value = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    call = PagedCall(query, key, value, module.key_cache, module.value_cache, batch.slots, scale, sliding_window)
    if isinstance(batch.kind, PagedRows):
        result = attend_rows(call, batch.kind)
    else:  # fused kernels support causal attention only
        result = (prefill_anywhere if batch.kind.groups else attend_prefill)(call, batch.kind)
    return result.unsqueeze(0), None


def rows_anywhere(call: PagedCall, rows: PagedRows) -> Tensor:
    """torch's own attention on all rows, padded to the longest and masked."""
    write(call)
    size = call.key_cache.shape[1]
    tables = rows.tables[:, : -(-int(rows.lengths.max()) // size)]
    place = torch.arange(tables.shape[1] * size, device=call.query.device)
    ends = rows.lengths[:, None]
    seen = place < ends
    if call.window is not None:
        seen = seen & (place >= ends - call.window)
    # Old content of a block may be NaN, which a mask does not remove.
    keys, values = (
        gather(cache, tables).masked_fill(~seen[:, None, :, None], 0) for cache in (call.key_cache, call.value_cache)
    )
    return torch_attention(call.query.unsqueeze(2), keys, values, seen[:, None, None, :], call.scale).squeeze(2)


def prefill_anywhere(call: PagedCall, prompts: Prefill) -> Tensor:
    """torch's own attention, one sequence after another."""
    write(call)
    results = []
    new, total = list(prompts.new), list(prompts.total)
    groups = prompts.groups or (None,) * len(new)
    parts = torch.split(call.query, new), torch.split(prompts.slots, total)
    for part, slots, own in zip(*parts, groups, strict=True):
        caches = call.key_cache, call.value_cache
        keys, values = (cache.flatten(0, 1)[slots].transpose(0, 1)[None] for cache in caches)
        seen = causal(len(part), len(slots), call.window, part.device, own)
        result = torch_attention(part.transpose(0, 1)[None], keys, values, seen, call.scale)
        results.append(result[0].transpose(0, 1))
    return torch.cat(results)


def gather(cache: Tensor, tables: Tensor) -> Tensor:
    """The cached keys or values of each sequence, [sequences, heads, tokens, size]."""
    return cache[tables.long()].flatten(1, 2).transpose(1, 2)


def causal(new: int, total: int, window: int | None, device: torch.device, groups: Tensor | None = None) -> Tensor:
    """Which of `total` tokens each of the last `new` ones sees: those before it, and those of its group."""
    behind = torch.arange(total - new, total, device=device)[:, None] - torch.arange(total, device=device)
    seen = behind >= 0
    if groups is not None:
        seen = seen | ((groups[-new:, None] == groups) & (groups >= 0))
    return seen & (behind < window) if window is not None else seen


def torch_attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """torch's attention, with grouped heads of keys and values."""
    grouped = query.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale, enable_gqa=grouped)
