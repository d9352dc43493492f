"""The kernels of our own for attention on CUDA, in Triton. npukit.inference.engine.attention_cuda starts them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
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
    arrivals,
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
    ROTATED: tl.constexpr,
    ROTATED_WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    SCALED: tl.constexpr,
):
    """One tile of tokens, the query heads of one key head, one part of the keys.

    A tile is a token with those behind it that are the next of the same prompt, up to a place that TILE divides: they
    read the same keys. A token inside of another's tile has nothing to do. Programs start in the order of tokens, the
    longest sequences first (as the scheduler has them), so that none of them is waited for at the end.

    If ROTATED is not 0, attention is latent: all query heads share one vector, key and value in one, and a rotated key
    in place of values; the query of the vector is followed by that of the rotated key. What is one key head elsewhere
    is then some of the query heads.
    """
    head, token, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
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
    share_of_keys = tl.cdiv(tl.cdiv(last - first, SPLITS), KEYS) * KEYS
    start = first + split * share_of_keys
    stop = tl.minimum(start + share_of_keys, last)
    heads: tl.constexpr = SHARED * GROUP
    own_head = head * GROUP + members % GROUP
    is_query = inside[:, None] & (wide[None, :] < SIZE)
    q_at = behind.to(tl.int64)[:, None] * token_stride + own_head[:, None] * head_stride
    q = tl.load(query + q_at + wide[None, :], mask=is_query, other=0.0)
    if ROTATED > 0:
        narrow = tl.arange(0, ROTATED_WIDE)[None, :]
        q_rotated = tl.load(query + q_at + SIZE + narrow, mask=inside[:, None] & (narrow < ROTATED), other=0.0)
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
        slot = block * BLOCK + places % BLOCK
        slot = slot if ROTATED > 0 else slot * SHARED + head
        is_key = there[:, None] & (wide[None, :] < SIZE)
        k = tl.load(key_cache + slot[:, None] * SIZE + wide[None, :], mask=is_key, other=0.0)
        seen = there[None, :] & (places[None, :] < ends[:, None])
        if WINDOW > 0:
            seen = seen & (places[None, :] >= ends[:, None] - WINDOW)
        scores = tl.dot(q, tl.trans(k.to(q.dtype))) * scale
        if SCALED:  # a key's scale is applied to its score, which is one number instead of a vector
            k_scale = tl.load(key_scales + slot, mask=there, other=0.0)[None, :]
            scores = scores * k_scale
        if ROTATED > 0:
            is_rotated = there[:, None] & (narrow < ROTATED)
            rotated = tl.load(value_cache + slot[:, None] * ROTATED + narrow, mask=is_rotated, other=0.0)
            others = tl.dot(q_rotated, tl.trans(rotated.to(q.dtype))) * scale
            scores += others * tl.load(value_scales + slot, mask=there, other=0.0)[None, :] if SCALED else others
            v = k
        else:
            v = tl.load(value_cache + slot[:, None] * SIZE + wide[None, :], mask=is_key, other=0.0)
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # of a token that sees none of these keys
        shares = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(shares, 1)
        if SCALED:
            v_scale = k_scale if ROTATED > 0 else tl.load(value_scales + slot, mask=there, other=0.0)[None, :]
            shares = shares * v_scale
        sums = sums * shrink[:, None] + tl.dot(shares.to(q.dtype), v.to(q.dtype))
        highest = higher
    own = behind.to(tl.int64) * heads + own_head
    sums = sums / tl.where(total > 0, total, 1.0)[:, None]
    if SPLITS == 1:
        tl.store(result + own[:, None] * SIZE + wide[None, :], sums, mask=is_query)
    else:
        spot = own * SPLITS + split
        tl.store(parts + spot[:, None] * SIZE + wide[None, :], sums, mask=is_query)
        tl.store(weights + spot, highest + tl.log2(total), mask=inside)
        tl.debug_barrier()  # all threads have stored before one of them says so
        arrived = tl.atomic_add(arrivals + token * SHARED + head, 1)
        if arrived == SPLITS - 1:  # the last part to be done puts all of them together, each by its share
            tl.store(arrivals + token * SHARED + head, 0)
            highest = tl.full([PADDED], -float("inf"), tl.float32)
            total = tl.zeros([PADDED], tl.float32)
            sums = tl.zeros([PADDED, WIDE], tl.float32)
            for number in range(SPLITS):
                spot = own * SPLITS + number
                weight = tl.load(weights + spot, mask=inside, other=-float("inf"), cache_modifier=".cg")
                own_part = parts + spot[:, None] * SIZE + wide[None, :]
                part = tl.load(own_part, mask=is_query, other=0.0, cache_modifier=".cg")
                higher = tl.maximum(highest, weight)
                base = tl.where(higher == -float("inf"), 0.0, higher)
                share, shrink = tl.exp2(weight - base), tl.exp2(highest - base)
                total = total * shrink + share
                sums = sums * shrink[:, None] + part * share[:, None]
                highest = higher
            sums = sums / tl.where(total > 0, total, 1.0)[:, None]
            tl.store(result + own[:, None] * SIZE + wide[None, :], sums, mask=is_query)


@triton.jit  # type: ignore[untyped-decorator]
def store(  # type: ignore[no-untyped-def]
    key,
    value,
    key_cache,
    value_cache,
    key_scales,
    value_scales,
    slots,
    key_token,
    key_head,
    value_token,
    value_head,
    SHARED: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """All heads of one token. LARGEST is the largest number of a cache in 8 bits, and 0 for other caches."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    heads, wide = tl.arange(0, HEADS)[:, None], tl.arange(0, WIDE)[None, :]
    is_key, is_value = (heads < SHARED) & (wide < SIZE), (heads < SHARED) & (wide < VALUE_SIZE)
    k = tl.load(key + token * key_token + heads * key_head + wide, mask=is_key)
    v = tl.load(value + token * value_token + heads * value_head + wide, mask=is_value)
    own = slot * SHARED + heads
    if LARGEST > 0:
        k, k_scale = _to_8_bits(tl.where(is_key, k, 0.0), LARGEST, key_cache.dtype.element_ty)
        v, v_scale = _to_8_bits(tl.where(is_value, v, 0.0), LARGEST, value_cache.dtype.element_ty)
        tl.store(key_scales + own, k_scale, mask=heads < SHARED)
        tl.store(value_scales + own, v_scale, mask=heads < SHARED)
    tl.store(key_cache + own * SIZE + wide, k, mask=is_key)
    tl.store(value_cache + own * VALUE_SIZE + wide, v, mask=is_value)


@triton.jit  # type: ignore[untyped-decorator]
def _to_8_bits(vectors, LARGEST: tl.constexpr, KIND: tl.constexpr):  # type: ignore[no-untyped-def]
    """Each row of vectors as 8-bit numbers, and its scale, as `npukit.llm.models.quantized.to_8_bits` has them."""
    vectors = vectors.to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(vectors), 1, keep_dims=True), 1e-12) / LARGEST
    numbers = vectors / scale
    if KIND.is_int8():
        numbers = tl.floor(numbers + 0.5)
    return numbers.to(KIND), scale
