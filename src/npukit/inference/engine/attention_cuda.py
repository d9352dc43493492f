"""Attention over the paged cache on CUDA.

Rows read keys and values straight from the blocks, each once for all the query heads that share it, in a kernel of our
own (torch has none that takes a table of blocks before 2.13). Long prompts fetch theirs from the blocks and call the
flash attention that torch has.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
from torch import Tensor

from npukit.inference.engine.kernels_cuda import attend, store
from npukit.inference.engine.paged import PagedCall, PagedRows, Prefill, read
from npukit.llm.models.quantized import largest_of

_KEYS, _WARPS, _STAGES = 64, 4, 3  # keys that a program looks at together, and how it is compiled
_LATENT_KEYS, _LATENT_STAGES = 16, 2  # the same of latent vectors, which are longer
_QUERIES = 16  # the least that the tensor cores take
_PROGRAMS = 512  # enough to keep every multiprocessor busy
_MAX_SPLITS = 16
_arrivals: dict[torch.device, Tensor] = {}  # how many parts of a sequence are done; all zero between two calls


def attend_rows(call: PagedCall, rows: PagedRows) -> Tensor:
    """Each query over its own length."""
    *tensors, scale, window, key_scales, value_scales = call
    result: Tensor = _attend_rows(
        *tensors, rows.rows, rows.tables, rows.lengths, scale, window or 0, key_scales, value_scales
    )
    return result


# An operator of its own, so that the compiler takes it as it is. It does write to the caches; that is not declared,
# because nothing else in a compiled layer looks at them, and the compiler would copy them to be safe.
@torch.library.custom_op("npukit::paged_rows", mutates_args=())
def _attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    rows: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
) -> Tensor:
    call = PagedCall(query, key, value, key_cache, value_cache, slots, scale, window, key_scales, value_scales)
    _write(call)
    tokens, heads, _ = query.shape
    size, rotated = key_cache.shape[3], value_cache.shape[3] if call.is_latent else 0
    shared = heads // gcd(heads, _QUERIES) if call.is_latent else key_cache.shape[2]
    group, wide = heads // shared, triton.next_power_of_2(size)
    padded = max(_QUERIES, triton.next_power_of_2(group))
    splits = _splits(tokens * shared)
    result = query.new_empty((tokens, heads, size))
    spread = splits if splits > 1 else 0  # what is not cut needs no room for parts
    parts = torch.empty((tokens, heads, spread, size), dtype=torch.float32, device=query.device)
    weights = torch.empty((tokens, heads, spread), dtype=torch.float32, device=query.device)
    if query.device not in _arrivals:
        _arrivals[query.device] = torch.zeros(_PROGRAMS, dtype=torch.int32, device=query.device)
    query = query if query.stride(2) == 1 else query.contiguous()
    attend[(shared, tokens, splits)](
        query,
        key_cache,
        value_cache,
        key_scales,
        value_scales,
        rows,
        tables,
        lengths,
        result,
        parts,
        weights,
        _arrivals[query.device],
        scale * 1.4426950408889634,  # the kernel works with powers of two
        tokens,
        tables.stride(0),
        query.stride(0),
        query.stride(1),
        SHARED=shared,
        GROUP=group,
        PADDED=padded,
        TILE=padded // group,
        SIZE=size,
        WIDE=wide,
        ROTATED=rotated,
        ROTATED_WIDE=max(_QUERIES, triton.next_power_of_2(rotated)) if rotated else 0,
        BLOCK=key_cache.shape[1],
        KEYS=_LATENT_KEYS if rotated else _KEYS,
        SPLITS=splits,
        WINDOW=window,
        SCALED=key_scales is not None,
        num_warps=_WARPS,
        num_stages=_LATENT_STAGES if rotated else _STAGES,
    )
    return result


@_attend_rows.register_fake
def _(query: Tensor, key: Tensor, *_: object) -> Tensor:
    return query.new_empty((*query.shape[:2], key.shape[2]))


def _splits(programs: int) -> int:
    """Into how many parts a sequence is cut, so that few long sequences keep the device busy, too."""
    splits = 1
    while splits < _MAX_SPLITS and programs * splits < _PROGRAMS:
        splits *= 2
    return splits


def _write(call: PagedCall) -> None:
    """Put each token's key and value where it belongs, in one kernel for both."""
    key, value = (tensor if tensor.stride(2) == 1 else tensor.contiguous() for tensor in (call.key, call.value))
    tokens, shared, size = key.shape
    store[(tokens,)](
        key,
        value,
        call.key_cache,
        call.value_cache,
        call.key_scales,
        call.value_scales,
        call.slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        SHARED=shared,
        HEADS=triton.next_power_of_2(shared),
        SIZE=size,
        VALUE_SIZE=value.shape[2],
        WIDE=triton.next_power_of_2(max(size, value.shape[2])),
        LARGEST=0.0 if call.key_scales is None else largest_of(call.key_cache.dtype),
    )


def fetch(call: PagedCall, prompts: Prefill) -> tuple[Tensor, Tensor]:
    """Write, then read."""
    _, *tensors, _, _, key_scales, value_scales = call
    result: tuple[Tensor, Tensor] = _fetch(*tensors, prompts.slots, key_scales, value_scales)
    return result


@torch.library.custom_op("npukit::paged_fetch", mutates_args=())  # as _attend_rows
def _fetch(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    all_slots: Tensor,
    key_scales: Tensor | None,
    value_scales: Tensor | None,
) -> tuple[Tensor, Tensor]:
    call = PagedCall(key, key, value, key_cache, value_cache, slots, 1.0, None, key_scales, value_scales)
    _write(call)
    return read(call, lambda cache: cache.flatten(0, 1)[all_slots])


@_fetch.register_fake
def _(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor, all_slots: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    total = all_slots.shape[0]
    return key.new_empty((total, *key.shape[1:])), value.new_empty((total, *value.shape[1:]))


def attend_prefill(
    query: Tensor, keys: Tensor, values: Tensor, prompts: Prefill, scale: float, window: int | None
) -> Tensor:
    """The sequences one behind the other; each new token sees what its own sequence has before it."""
    result: Tensor = _attend_prefill(query, keys, values, prompts.new_borders, prompts.borders, scale, window or 0)
    return result


@torch.library.custom_op("npukit::paged_prefill", mutates_args=())
def _attend_prefill(
    query: Tensor, keys: Tensor, values: Tensor, new_borders: Tensor, borders: Tensor, scale: float, window: int
) -> Tensor:
    # No run is longer than all of them together; to know more the host would have to wait.
    longest = query.shape[0], keys.shape[0]
    left, right = (None, None) if not window else (window - 1, 0)
    result: Tensor = torch.ops.aten._flash_attention_forward(
        query, keys, values, new_borders, borders, *longest, 0.0, True, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    return result.contiguous()


@_attend_prefill.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)
