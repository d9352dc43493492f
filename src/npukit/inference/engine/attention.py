"""Attention over the paged cache, registered with transformers under its own name.

Each call writes the new tokens' keys and values to their slots, then attends to all of the sequence that is in the
cache. Every device has an implementation of its own; all compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from npukit.inference.engine import latent
from npukit.inference.engine.cache import CacheShape
from npukit.inference.engine.paged import NAME, PagedBatch, PagedCall, PagedRows, Prefill, read, write
from npukit.launch.abilities import abilities

_JOINED = (torch.float32, torch.bfloat16)  # what torch's flash attention computes with on a CPU
PADDED = 255  # tokens that a shorter row may be padded to; longer ones are padded to less than twice their length


class Kernels(NamedTuple):
    """What attention is computed with on a device."""

    rows: Callable[[PagedCall, PagedRows], Tensor]
    """Writes the new tokens to the cache and attends."""
    fetch: Callable[[PagedCall, Prefill], tuple[Tensor, Tensor]]
    """Writes the new tokens to the cache and reads all of their sequences from it."""
    prefill: Callable[[Tensor, Tensor, Tensor, Prefill, float, int | None], Tensor]
    """Attends, given the queries of the new tokens, keys and values of all, the scale and the window."""


def register(kind: str, dtype: torch.dtype, shape: CacheShape) -> str:
    """Register a device's attention with transformers, which then makes no mask for it; returns its name."""
    from transformers import AttentionInterface

    is_half = dtype in (torch.float16, torch.bfloat16)
    if kind == "cuda" and is_half:
        from npukit.inference.engine.attention_cuda import attend_prefill, attend_rows, fetch

        kernels = Kernels(attend_rows, fetch, attend_prefill)
    elif kind == "npu" and is_half:
        from npukit.inference.engine.attention_npu import attend_prefill, attend_rows, fetch

        kernels = Kernels(attend_rows, fetch, attend_prefill)
        if not shape.is_for_npu_kernel:
            kind, kernels = "npu_rows_anywhere", kernels._replace(rows=rows_anywhere)
    else:
        kind, kernels = "anywhere", Kernels(rows_anywhere, fetch_anywhere, prefill_anywhere)
    name = f"{NAME}_{kind}"
    AttentionInterface.register(name, partial(paged_attention, kernels))
    return name


def paged_attention(
    kernels: Kernels,
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
    caches = module.key_cache, module.value_cache
    scales = getattr(module, "key_scales", None), getattr(module, "value_scales", None)
    call = PagedCall(query, key, value, *caches, batch.slots, scale, sliding_window, *scales)
    rows, prefill = kernels.rows, kernels.prefill
    if isinstance(batch.kind, Prefill) and batch.kind.groups:  # fused kernels support causal attention only
        prefill = prefill_anywhere
    if latent.is_latent(module):
        rows, prefill = partial(latent.attend_rows, module, rows), partial(latent.attend_prefill, module, prefill)
    if isinstance(batch.kind, PagedRows):
        result = rows(call, batch.kind)
    else:
        result = prefill(query, *kernels.fetch(call, batch.kind), batch.kind, scale, sliding_window)
    return result.unsqueeze(0), None


def rows_anywhere(call: PagedCall, rows: PagedRows) -> Tensor:
    """torch's own attention on the rows of about the same length together, padded to the longest and masked."""
    write(call)
    lengths = rows.lengths.tolist()
    alike = [max(length, PADDED).bit_length() for length in lengths]
    if len(set(alike)) == 1:
        return _padded_rows(call, call.query, rows.tables, rows.lengths, min(lengths), max(lengths))
    order, results = list[int](), []
    for bits in set(alike):
        members = [row for row, own in enumerate(alike) if own == bits]
        own_lengths = [lengths[row] for row in members]
        at = torch.tensor(members, device=call.query.device)
        shortest, longest = min(own_lengths), max(own_lengths)
        results.append(_padded_rows(call, call.query[at], rows.tables[at], rows.lengths[at], shortest, longest))
        order += members
    return torch.cat(results)[torch.tensor(order, device=call.query.device).argsort()]


def _padded_rows(
    call: PagedCall, query: Tensor, tables: Tensor, lengths: Tensor, shortest: int, longest: int
) -> Tensor:
    size = call.key_cache.shape[1]
    blocks = tables[:, : -(-longest // size)].long()
    place = torch.arange(blocks.shape[1] * size, device=query.device)
    ends = lengths[:, None]
    seen = place < ends
    keys, values = read(call, lambda cache: cache[blocks].flatten(1, 2))
    for part in (keys, values):  # old content of a block may be NaN, which a mask does not remove
        part[:, shortest:].masked_fill_(~seen[:, shortest:, None, None], 0)
    if call.is_latent:
        keys, values = torch.cat((keys, values), -1), keys
    if call.window is not None:
        seen = seen & (place >= ends - call.window)
    # Query heads that share a key head are further queries of it.
    shared = query.reshape(len(query), keys.shape[2], -1, query.shape[2])
    result = torch_attention(shared, keys.transpose(1, 2), values.transpose(1, 2), seen[:, None, None], call.scale)
    return result.reshape(*query.shape[:2], -1)


def fetch_anywhere(call: PagedCall, prompts: Prefill) -> tuple[Tensor, Tensor]:
    """Write, then read, with torch's own operators."""
    write(call)
    return read(call, lambda cache: cache.flatten(0, 1)[prompts.slots])


def prefill_anywhere(
    query: Tensor, keys: Tensor, values: Tensor, prompts: Prefill, scale: float, window: int | None
) -> Tensor:
    """torch's own attention, one sequence after another."""
    can_join = not abilities(query.device).own_memory and window is None and query.dtype in _JOINED
    results = []
    new, total = list(prompts.new), list(prompts.total)
    groups = prompts.groups or (None,) * len(new)
    parts = torch.split(query, new), torch.split(keys, total), torch.split(values, total)
    for *own_parts, own in zip(*parts, groups, strict=True):
        q, k, v = (part.transpose(0, 1)[None] for part in own_parts)
        if can_join and own is None and k.shape[2] >= 2 * q.shape[2]:
            result = joined_attention(q, k, v, scale)
        else:
            result = torch_attention(q, k, v, causal(q.shape[2], k.shape[2], window, q.device, own), scale)
        results.append(result[0].transpose(0, 1))
    return torch.cat(results)


def causal(new: int, total: int, window: int | None, device: torch.device, groups: Tensor | None = None) -> Tensor:
    """Which of `total` tokens each of the last `new` ones sees: those before it, and those of its group."""
    own, places = torch.arange(total - new, total, device=device)[:, None], torch.arange(total, device=device)
    seen = places <= own
    if groups is not None:
        seen = seen | ((groups[-new:, None] == groups) & (groups >= 0))
    return seen & (places > own - window) if window is not None else seen


def joined_attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of the last tokens of a sequence on a CPU, without a mask: over the tokens before them, which
    all of them see, and over themselves, joined by their shares. All are [1, heads, tokens, size].
    """
    _, heads, new, size = query.shape
    before, group = keys.shape[2] - new, heads // keys.shape[1]
    attend = partial(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, scale=scale)
    # Query heads that share a key head are further queries of it.
    folded = query.reshape(1, keys.shape[1], group * new, size)
    far, far_logsum = attend(folded, keys[:, :, :before], values[:, :, :before])
    own = (part[:, :, before:].repeat_interleave(group, 1) for part in (keys, values))
    near, near_logsum = attend(query, *own, is_causal=True)
    share = torch.sigmoid(far_logsum.reshape(near_logsum.shape) - near_logsum)[..., None]
    return torch.lerp(near, far.reshape(query.shape), share.to(near.dtype))


def torch_attention(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float) -> Tensor:
    """torch's attention, with grouped heads of keys and values."""
    grouped = query.shape[1] != keys.shape[1]
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale, enable_gqa=grouped)
