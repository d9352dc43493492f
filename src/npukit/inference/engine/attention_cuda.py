"""Attention over the paged cache on CUDA.

Rows read keys and values straight from the blocks, each once for all the query heads that share it, in a kernel of our
own (torch has none that takes a table of blocks before 2.13). Long prompts fetch theirs from the blocks and call the
flash attention that torch has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from npukit.inference.engine.paged import Call, Prefill, Rows

_KEYS, _WARPS, _STAGES = 64, 4, 3  # keys that a program looks at together, and how it is compiled
_QUERIES = 16  # the least that the tensor cores take
_PROGRAMS = 512  # enough to keep every multiprocessor busy
_MOST_SPLITS = 16


def attend_rows(call: Call, rows: Rows) -> Tensor:
    """Each query over its own length."""
    query, key, value, key_cache, value_cache, slots, scale, window = call
    result: Tensor = _attend_rows(
        query, key, value, key_cache, value_cache, slots, rows.rows, rows.tables, rows.lengths, scale, window or 0
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
) -> Tensor:
    _write(key, value, key_cache, value_cache, slots)
    tokens, heads, size = query.shape
    shared = key_cache.shape[2]
    group, wide = heads // shared, triton.next_power_of_2(size)
    padded = max(_QUERIES, triton.next_power_of_2(group))
    splits = _splits(tokens * shared)
    result = query.new_empty(query.shape)
    parts = torch.empty((tokens, heads, splits, size), dtype=torch.float32, device=query.device)
    weights = torch.empty((tokens, heads, splits), dtype=torch.float32, device=query.device)
    query = query if query.stride(2) == 1 else query.contiguous()
    _attend[(tokens, shared, splits)](
        query,
        key_cache,
        value_cache,
        rows,
        tables,
        lengths,
        result,
        parts,
        weights,
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
        BLOCK=key_cache.shape[1],
        KEYS=_KEYS,
        SPLITS=splits,
        WINDOW=window,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    if splits > 1:
        _combine[(tokens, heads)](parts, weights, result, HEADS=heads, SIZE=size, WIDE=wide, SPLITS=splits)
    return result


@_attend_rows.register_fake
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
    rows,
    tables,
    lengths,
    result,
    parts,
    weights,
    scale,
    tokens,
    table_stride,
    token_stride,
    head_stride,
    SHARED: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One tile of tokens, the query heads of one key head, one part of the keys.

    A tile is a token with those behind it that are the next of the same prompt, up to a place that TILE divides: they
    read the same keys. A token inside of another's tile has nothing to do.
    """
    token, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, length = tl.load(rows + token), tl.load(lengths + token).to(tl.int32)
    before = tl.maximum(token - 1, 0)
    follows = (token > 0) & (tl.load(rows + before) == row) & (tl.load(lengths + before).to(tl.int32) + 1 == length)
    at = (length - 1) % TILE
    if follows & (at != 0):
        return
    members, wide = tl.arange(0, PADDED), tl.arange(0, WIDE)
    later = members // GROUP  # how many tokens behind the first one
    behind = tl.minimum(token + later, tokens - 1)
    ends = length + later
    inside = (at + later < TILE) & (token + later < tokens)
    inside = inside & (tl.load(rows + behind) == row) & (tl.load(lengths + behind).to(tl.int32) == ends)
    last = tl.max(tl.where(inside, ends, 0), 0)
    first = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    part = tl.cdiv(tl.cdiv(last - first, SPLITS), KEYS) * KEYS
    start = first + split * part
    stop = tl.minimum(start + part, last)
    heads: tl.constexpr = SHARED * GROUP
    own_head = head * GROUP + members % GROUP
    is_query = inside[:, None] & (wide[None, :] < SIZE)
    q_at = behind.to(tl.int64)[:, None] * token_stride + own_head[:, None] * head_stride + wide[None, :]
    q = tl.load(query + q_at, mask=is_query, other=0.0)
    highest = tl.full([PADDED], -float("inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    table = tables + token.to(tl.int64) * table_stride
    sums = tl.zeros([PADDED, WIDE], tl.float32)
    for place in range(start, stop, KEYS):
        places = place + tl.arange(0, KEYS)
        there = places < stop
        if BLOCK % KEYS == 0 and WINDOW == 0:  # all in one block
            block = tl.load(table + place // BLOCK).to(tl.int64)
        else:
            block = tl.load(table + places // BLOCK, mask=there, other=0).to(tl.int64)
        slot = (block * BLOCK + places % BLOCK) * SHARED + head
        is_key = there[:, None] & (wide[None, :] < SIZE)
        k = tl.load(key_cache + slot[:, None] * SIZE + wide[None, :], mask=is_key, other=0.0)
        v = tl.load(value_cache + slot[:, None] * SIZE + wide[None, :], mask=is_key, other=0.0)
        seen = there[None, :] & (places[None, :] < ends[:, None])
        if WINDOW > 0:
            seen = seen & (places[None, :] >= ends[:, None] - WINDOW)
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * scale, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # of a token that sees none of these keys
        shares = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(shares, 1)
        sums = sums * shrink[:, None] + tl.dot(shares.to(v.dtype), v)
        highest = higher
    own = behind.to(tl.int64) * heads + own_head
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    if SPLITS == 1:
        tl.store(result + own[:, None] * SIZE + wide[None, :], sums, mask=is_query)
    else:
        spot = own * SPLITS + split
        tl.store(parts + spot[:, None] * SIZE + wide[None, :], sums, mask=is_query)
        tl.store(weights + spot, highest + tl.log2(total), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    parts, weights, result, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, SPLITS: tl.constexpr
):
    """The parts of one token and query head, each by its share."""
    own = tl.program_id(0) * HEADS + tl.program_id(1)
    splits, wide = tl.arange(0, SPLITS), tl.arange(0, WIDE)
    weight = tl.load(weights + own * SPLITS + splits)
    share = tl.exp2(weight - tl.max(weight, 0))
    at = (own * SPLITS + splits)[:, None] * SIZE + wide[None, :]
    values = tl.load(parts + at, mask=wide[None, :] < SIZE, other=0.0)
    combined = tl.sum(values * share[:, None], 0) / tl.sum(share, 0)
    tl.store(result + own * SIZE + wide, combined, mask=wide < SIZE)


def _write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put each token's key and value where it belongs, in one kernel for both."""
    key, value = (each if each.stride(2) == 1 else each.contiguous() for each in (key, value))
    tokens, shared, size = key.shape
    _store[(tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        SHARED=shared,
        HEADS=triton.next_power_of_2(shared),
        SIZE=size,
        WIDE=triton.next_power_of_2(size),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    key,
    value,
    key_cache,
    value_cache,
    slots,
    key_token,
    key_head,
    value_token,
    value_head,
    SHARED: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """All heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    heads, wide = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDE)[None, :]
    there = (heads < SHARED) & (wide < SIZE)
    k = tl.load(key + token * key_token + heads * key_head + wide, mask=there)
    v = tl.load(value + token * value_token + heads * value_head + wide, mask=there)
    at = (slot * SHARED + heads) * SIZE + wide
    tl.store(key_cache + at, k, mask=there)
    tl.store(value_cache + at, v, mask=there)


def attend_prefill(call: Call, prompts: Prefill) -> Tensor:
    """The sequences one behind the other; each new token sees what its own sequence has before it."""
    query, key, value, key_cache, value_cache, slots, scale, window = call
    borders = prompts.new_borders, prompts.borders
    result: Tensor = _attend_prefill(
        query, key, value, key_cache, value_cache, slots, prompts.slots, *borders, scale, window or 0
    )
    return result


@torch.library.custom_op("npukit::paged_prefill", mutates_args=())  # as _attend_rows
def _attend_prefill(
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
    _write(key, value, key_cache, value_cache, slots)
    keys, values = (cache.flatten(0, 1)[all_slots] for cache in (key_cache, value_cache))
    # No run is longer than all of them together; to know more the host would have to wait.
    longest = query.shape[0], keys.shape[0]
    left, right = (None, None) if not window else (window - 1, 0)
    result: Tensor = torch.ops.aten._flash_attention_forward(
        query, keys, values, new_borders, borders, *longest, 0.0, True, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    return result


@_attend_prefill.register_fake
def _(query: Tensor, *_: object) -> Tensor:
    return query.new_empty(query.shape)
