"""Draw tokens on CUDA in one kernel, which reads the vocabulary a few times instead of sorting it.

Adding Gumbel noise and taking the largest sum is a draw from the distribution. What top_p leaves out is found by
drawing: where the mass above the drawn token shows that it is outside, the token and everything below it are left out
and the draw is repeated with the same noise. That ends with the largest sum of all tokens inside, which is the token
that npukit.inference.engine.draw finds by sorting, after one or two rounds instead of a sort.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 8192, 16
_FEW = 256
_SETTINGS = ["temperatures", "top_ps", "min_ps", "top_ks", "seeds", "positions"]


def draw(logits: Tensor, numbers: Iterable[Tensor], ids: Tensor | None = None) -> Tensor:
    """A token for each row of logits, [rows, words]; `numbers` are those of npukit.inference.engine.draw.

    With `ids`, of the same shape, a row has the logits of the tokens with these ids, the highest first, and draws from
    as many of them as its top_k says.
    """
    rows, words = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block, warps = (_BLOCK, _WARPS) if words > _FEW else (_FEW, 1)
    _draw[(rows,)](logits, ids, *numbers, tokens, words, logits.stride(0), block, num_warps=warps)
    return tokens


def logprobs(logits: Tensor, tokens: Tensor, temperatures: Tensor | float) -> Tensor:
    """The log-probability of each row's token; `temperatures` is a column, or 1.0 where there is none."""
    rows, words = logits.shape
    result = torch.empty(rows, dtype=torch.float32, device=logits.device)
    column = temperatures if isinstance(temperatures, Tensor) else None
    _logprob[(rows,)](logits, tokens, column, result, words, logits.stride(0), _BLOCK, num_warps=_WARPS)
    return result


# The settings are columns of one table, whose alignment follows the number of rows: without this Triton would compile
# the kernel anew, for a second, when the first batch of another size comes.
@triton.jit(do_not_specialize=_SETTINGS)  # type: ignore[untyped-decorator]
def _draw(  # type: ignore[no-untyped-def]
    logits, ids, temperatures, top_ps, min_ps, top_ks, seeds, positions, tokens, words, stride, BLOCK: tl.constexpr
):
    """One program draws the token of one row."""
    row = tl.program_id(0).to(tl.int64)
    own, temperature = logits + row * stride, tl.load(temperatures + row)
    top_p, min_p = tl.load(top_ps + row), tl.load(min_ps + row)
    own_ids = ids
    if ids is not None:
        own_ids = ids + row * stride
        words = tl.minimum(words, tl.load(top_ks + row).to(tl.int32))
    seed = tl.load(seeds + row)
    mixed = _hash((seed & 0xFFFFFFFF).to(tl.uint32)) ^ _hash(((seed >> 32) & 0xFFFFFFFF).to(tl.uint32))
    mixed = _hash(mixed ^ (tl.load(positions + row).to(tl.uint32) * 0x9E3779B9))

    place, value = _best(own, own_ids, temperature, mixed, -float("inf"), -float("inf"), words, BLOCK)
    if (top_p < 1) | (min_p > 0):
        highest, total = _highest_and_mass(own, temperature, words, BLOCK)
        least = tl.where(min_p > 0, highest + tl.log(min_p), -float("inf"))
        above = _mass_above(own, temperature, highest, value, words, BLOCK)
        while ((above > 0) & (above >= top_p * total)) | (value < least):
            place, value = _best(own, own_ids, temperature, mixed, least, value, words, BLOCK)
            above = _mass_above(own, temperature, highest, value, words, BLOCK)
    token = place.to(tl.int64)
    if ids is not None:
        token = tl.load(own_ids + place)
    tl.store(tokens + row, token)


@triton.jit(do_not_specialize=["temperatures"])  # type: ignore[untyped-decorator]
def _logprob(  # type: ignore[no-untyped-def]
    logits, tokens, temperatures, result, words, stride, BLOCK: tl.constexpr
):
    """One program computes that of one row's token."""
    row = tl.program_id(0).to(tl.int64)
    own, temperature = logits + row * stride, 1.0
    if temperatures is not None:
        temperature = tl.load(temperatures + row)
    highest, total = _highest_and_mass(own, temperature, words, BLOCK)
    value = tl.load(own + tl.load(tokens + row)).to(tl.float32) / temperature
    tl.store(result + row, value - highest - tl.log(total))


@triton.jit  # type: ignore[untyped-decorator]
def _best(own, ids, temperature, mixed, least, floor, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where the largest sum of logit and noise is among the logits above the floor, and that logit."""
    sums = tl.full([BLOCK], -float("inf"), tl.float32)
    values = tl.full([BLOCK], -float("inf"), tl.float32)
    places = tl.zeros([BLOCK], tl.int32)
    for start in range(0, words, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(own + at, mask=at < words, other=-float("inf")).to(tl.float32) / temperature
        token = at
        if ids is not None:
            token = tl.load(ids + at, mask=at < words, other=0)
        hashed = _hash(mixed ^ (token.to(tl.uint32) * 0x85EBCA77))
        uniform = ((hashed >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
        noisy = tl.where((x > floor) & (x >= least), x - tl.log(-tl.log(uniform)), -float("inf"))
        better = noisy > sums
        sums, values, places = tl.where(better, noisy, sums), tl.where(better, x, values), tl.where(better, at, places)
    most = tl.max(sums, 0)
    place = tl.min(tl.where(sums == most, places, 2147483647), 0)
    return place, tl.max(tl.where((sums == most) & (places == place), values, -float("inf")), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _highest_and_mass(own, temperature, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The highest logit of a row, and the sum of all exponentials relative to it."""
    highs, sums = tl.full([BLOCK], -1e30, tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, words, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(own + at, mask=at < words, other=-float("inf")).to(tl.float32) / temperature
        higher = tl.maximum(highs, x)
        highs, sums = higher, sums * tl.exp(highs - higher) + tl.exp(x - higher)
    highest = tl.max(highs, 0)
    return highest, tl.sum(sums * tl.exp(highs - highest), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _mass_above(own, temperature, highest, value, words, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of the exponentials of all logits above a value, relative to the highest."""
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, words, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(own + at, mask=at < words, other=-float("inf")).to(tl.float32) / temperature
        sums += tl.where(x > value, tl.exp(x - highest), 0.0)
    return tl.sum(sums, 0)


@triton.jit
def _hash(numbers):  # type: ignore[no-untyped-def]
    """As npukit.inference.engine.draw mixes 32 bits."""
    numbers = (numbers ^ (numbers >> 16)) * 0x85EBCA6B
    numbers = (numbers ^ (numbers >> 13)) * 0xC2B2AE35
    return numbers ^ (numbers >> 16)
