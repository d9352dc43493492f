"""Attention over the paged cache on CUDA.

Decoding reads each key and value once for all the query heads that share it, straight from the blocks, in a kernel of
our own (torch has none that takes a table of blocks before 2.13). Prefill fetches keys and values from the blocks and
calls the flash attention that torch has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from npukit.inference.engine.paged import Batch, Decode, Prefill, write

_KEYS = 64  # that a program looks at together
_PROGRAMS = 512  # enough to keep every multiprocessor busy
_MOST_SPLITS = 16


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
    """One query a sequence."""
    kind = batch.kind
    assert isinstance(kind, Decode)
    result: Tensor = _decode(
        query, key, value, key_cache, value_cache, batch.slots, kind.tables, kind.lengths, scale, window or 0
    )
    return result


# An operator of its own, so that the compiler takes it as it is. It does write to the caches; that is not declared,
# because nothing else in a compiled layer looks at them, and the compiler would copy them to be safe.
@torch.library.custom_op("npukit::paged_decode", mutates_args=())
def _decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    write(key, value, key_cache, value_cache, slots)
    query = query.contiguous()
    sequences, heads, size = query.shape
    shared = key_cache.shape[2]
    splits = _splits(sequences * shared)
    result = torch.empty_like(query)
    parts = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=query.device)
    weights = torch.empty((sequences, heads, splits), dtype=torch.float32, device=query.device)
    _attend[(sequences, shared, splits)](
        query,
        key_cache,
        value_cache,
        tables,
        lengths,
        result,
        parts,
        weights,
        scale * 1.4426950408889634,  # the kernel works with powers of two
        tables.stride(0),
        SHARED=shared,
        GROUP=heads // shared,
        PADDED=max(16, triton.next_power_of_2(heads // shared)),
        SIZE=size,
        WIDE=triton.next_power_of_2(size),
        BLOCK=key_cache.shape[1],
        KEYS=_KEYS,
        SPLITS=splits,
        WINDOW=window,
        num_warps=4,
        num_stages=3,
    )
    if splits > 1:
        _combine[(sequences, heads)](
            parts, weights, result, HEADS=heads, SIZE=size, WIDE=triton.next_power_of_2(size), SPLITS=splits
        )
    return result


@_decode.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)


def _splits(programs: int) -> int:
    """Into how many parts a sequence is cut, so that few long sequences keep the device busy, too."""
    splits = 1
    while splits < _MOST_SPLITS and programs * splits < _PROGRAMS:
        splits *= 2
    return splits


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    key_cache,
    value_cache,
    tables,
    lengths,
    result,
    parts,
    weights,
    scale,
    table_stride,
    SHARED: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One sequence, the query heads of one key head, one part of the tokens."""
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence).to(tl.int32)
    first = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    part = tl.cdiv(tl.cdiv(length - first, SPLITS), KEYS) * KEYS
    start = first + split * part
    stop = tl.minimum(start + part, length)
    members, wide = tl.arange(0, PADDED), tl.arange(0, WIDE)
    heads: tl.constexpr = SHARED * GROUP
    own = sequence * heads + head * GROUP + members  # the query heads
    is_query = (members[:, None] < GROUP) & (wide[None, :] < SIZE)
    q = tl.load(query + own[:, None] * SIZE + wide[None, :], mask=is_query, other=0.0)
    highest = tl.full([PADDED], -float("inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    sums = tl.zeros([PADDED, WIDE], tl.float32)
    for place in range(start, stop, KEYS):
        places = place + tl.arange(0, KEYS)
        seen = places < stop
        block = tl.load(tables + sequence * table_stride + places // BLOCK, mask=seen, other=0).to(tl.int64)
        slot = (block * BLOCK + places % BLOCK) * SHARED + head
        there = seen[:, None] & (wide[None, :] < SIZE)
        k = tl.load(key_cache + slot[:, None] * SIZE + wide[None, :], mask=there, other=0.0)
        v = tl.load(value_cache + slot[:, None] * SIZE + wide[None, :], mask=there, other=0.0)
        scores = tl.where(seen[None, :], tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(shares, 1)
        sums = sums * shrink[:, None] + tl.dot(shares.to(v.dtype), v)
        highest = higher
    if SPLITS == 1:
        tl.store(result + own[:, None] * SIZE + wide[None, :], sums / total[:, None], mask=is_query)
    else:
        at = own * SPLITS + split
        sums = tl.where(total[:, None] > 0, sums / total[:, None], 0.0)
        tl.store(parts + at[:, None] * SIZE + wide[None, :], sums, mask=is_query)
        tl.store(weights + at, highest + tl.log2(total), mask=members < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    parts, weights, result, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr
):
    """The parts of one sequence and query head, each by its share."""
    own = tl.program_id(0) * HEADS + tl.program_id(1)
    splits, wide = tl.arange(0, SPLITS), tl.arange(0, WIDE)
    weight = tl.load(weights + own * SPLITS + splits)
    share = tl.exp2(weight - tl.max(weight, 0))
    at = (own * SPLITS + splits)[:, None] * SIZE + wide[None, :]
    values = tl.load(parts + at, mask=wide[None, :] < SIZE, other=0.0)
    combined = tl.sum(values * share[:, None], 0) / tl.sum(share, 0)
    tl.store(result + own * SIZE + wide, combined, mask=wide < SIZE)


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
    """The sequences one behind the other; each new token sees what its own sequence has before it."""
    kind = batch.kind
    assert isinstance(kind, Prefill)
    borders = kind.new_borders, kind.borders
    result: Tensor = _prefill(
        query, key, value, key_cache, value_cache, batch.slots, kind.slots, *borders, scale, window or 0
    )
    return result


@torch.library.custom_op("npukit::paged_prefill", mutates_args=())  # as _decode
def _prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    all_slots: Tensor,
    new_borders: Tensor,
    borders: Tensor,
    scale: float,
    window: int,
) -> Tensor:
    write(key, value, key_cache, value_cache, slots)
    keys, values = (cache.flatten(0, 1)[all_slots] for cache in (key_cache, value_cache))
    # No run is longer than all of them together; to know more the host would have to wait.
    longest = query.shape[0], keys.shape[0]
    left, right = (None, None) if not window else (window - 1, 0)
    result: Tensor = torch.ops.aten._flash_attention_forward(
        query, keys, values, new_borders, borders, *longest, 0.0, True, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    return result


@_prefill.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)
