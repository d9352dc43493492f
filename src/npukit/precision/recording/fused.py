"""The statistics of a tensor in one pass over it, as a Triton kernel for GPUs; the figures are those of statistics.py.

A program reads 16 rows and writes one line of partial results; `Batch.take` adds the lines of a tensor up on the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16  # that a program reads
PLAIN = 6  # minimum, maximum, sum, sum of squares, NaN, Inf


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    values,
    bits,
    signs,
    row_signs,
    weights,
    row_weights,
    figures,
    hashes,
    count,
    length,
    PLAIN_FIGURES: tl.constexpr,
    BUCKETS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < length
    sign = tl.load(signs + column, mask=inside, other=0.0)
    weight = tl.load(weights + column, mask=inside, other=0)
    infinity = float("inf")
    smallest = tl.full((BLOCK,), infinity, tl.float32)
    largest = tl.full((BLOCK,), -infinity, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    nans = tl.zeros((BLOCK,), tl.float32)
    infs = tl.zeros((BLOCK,), tl.float32)
    sketch = tl.zeros((BLOCK,), tl.float32)
    hashed = tl.zeros((BLOCK,), tl.int64)
    for each in range(ROWS):
        row = (program * ROWS + each).to(tl.int64)
        place = row * length + column
        here = inside & (place < count)
        value = tl.load(values + place, mask=here, other=0.0).to(tl.float32)
        bit = tl.load(bits + place, mask=here, other=0).to(tl.int32)
        is_nan = value != value
        smallest = tl.where(here & (value < smallest), value, smallest)
        largest = tl.where(here & (value > largest), value, largest)
        total += value
        squares += value * value
        nans += is_nan.to(tl.float32)
        infs += (tl.abs(value) == infinity).to(tl.float32)
        sketch += value * (sign * tl.load(row_signs + row % BLOCK))
        hashed += (bit * weight).to(tl.int64) * tl.load(row_weights + row % BLOCK)
    line = figures + program * (PLAIN_FIGURES + BUCKETS)
    tl.store(line + 0, tl.min(smallest, 0))
    tl.store(line + 1, tl.max(largest, 0))
    tl.store(line + 2, tl.sum(total, 0))
    tl.store(line + 3, tl.sum(squares, 0))
    tl.store(line + 4, tl.sum(nans, 0))
    tl.store(line + 5, tl.sum(infs, 0))
    buckets = tl.sum(tl.reshape(sketch, (BLOCK // BUCKETS, BUCKETS)), 0)
    tl.store(line + PLAIN_FIGURES + tl.arange(0, BUCKETS), buckets)
    tl.store(hashes + program, tl.sum(hashed, 0))


def partials(
    flat: Tensor, length: int, signs: tuple[Tensor, Tensor], weights: tuple[Tensor, Tensor], buckets: int
) -> tuple[Tensor, Tensor]:
    """Lines of partial figures, and partial hashes, of a contiguous tensor of half or single precision.

    >>> figures, hashes = partials(torch.ones(8192, device="cuda"), 4096, signs, weights, 16)
    """
    count = flat.numel()
    programs = -(-count // (length * _ROWS))
    figures = torch.empty(programs, PLAIN + buckets, dtype=torch.float32, device=flat.device)
    hashes = torch.empty(programs, dtype=torch.int64, device=flat.device)
    bits = flat.view(torch.int16 if flat.dtype.itemsize == 2 else torch.int32)
    _kernel[(programs,)](
        flat, bits, *signs, *weights, figures, hashes, count, length, PLAIN, buckets, len(signs[0]), _ROWS, num_warps=16
    )
    return figures, hashes
