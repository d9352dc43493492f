"""Statistics of a tensor, computed on its device without waiting.

Besides minimum, maximum, mean, L2 norm and the counts of NaN and Inf, two figures make a dump without tensors nearly as
useful as one with them:
- a hash of the values in their logical order, in exact integer arithmetic: equal bits give equal hashes in any layout;
- a sketch: each element is added, with a fixed sign, to one of 16 sums. Because this is linear, the distance between
  two sketches estimates the L2 norm of the difference of the tensors, although neither run has seen the other's tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from npukit.launch.abilities import abilities
from npukit.precision.dump import BUCKETS

ROW = 4096  # elements that share one pattern of signs
PLAIN = 6  # minimum, maximum, sum, norm, NaN, Inf


@dataclass(frozen=True)
class Statistics:
    """The statistics recorded for a tensor."""

    minimum: float
    maximum: float
    mean: float | None = None  # None for integers and bool
    norm: float | None = None
    nan: int = 0
    inf: int = 0
    hash: str = ""
    sketch: tuple[float, ...] = ()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Compute without being recorded, differentiated or cast to half precision."""
    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        yield


def statistics_from(row: list[float], number: int, count: int, floating: bool) -> Statistics:
    """Build statistics from the figures and the hash of a tensor with `count` elements."""
    minimum, maximum, total, norm, nan, inf = row[:PLAIN]
    hashed = f"{number & 0xFFFFFFFF:08x}"
    if not floating:
        return Statistics(minimum, maximum, hash=hashed)
    return Statistics(minimum, maximum, total / count, norm, int(nan), int(inf), hashed, tuple(row[PLAIN:]))


def figures_of(flat: Tensor) -> Tensor:
    """Minimum, maximum, sum, norm, NaN, Inf and sketch of a flat tensor. For integers only the first two matter."""
    return _floating(flat) if flat.is_floating_point() else _integers(flat)


def hash_of(flat: Tensor) -> Tensor:
    """The hash of a flat tensor, as an integer on its device of which only the lowest 32 bits count.

    Each element is multiplied, mixed, multiplied again and added, so that equal changes to two elements do not cancel
    out.
    """
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    size = flat.dtype.itemsize
    if flat.stride(0) != 1:  # `contiguous()` keeps a single element's stride, which views reject
        flat = flat.clone(memory_format=torch.contiguous_format)
    bits = flat.view({1: torch.uint8, 2: torch.int16}.get(size, torch.int32)).to(torch.int32)
    odd, row_odd = weights("odd", flat.device, torch.int32)
    rows = _in_rows(bits)
    mixed = rows * odd[: rows.shape[1]]
    mixed ^= (mixed >> 15).bitwise_and_(0x1FFFF)
    # In 64 bits, so that no device reports an overflow. CPUs do not, and take a third of the time in 32 bits.
    sums = mixed.sum(1, dtype=torch.int64 if abilities(flat.device).own_memory else torch.int32)
    return ((sums & 0xFFFFFFFF) * _repeated(row_odd, len(rows)).to(torch.int64)).sum()


def _floating(flat: Tensor) -> Tensor:
    # NPUs have no double precision, and half precision has too few digits for a sum.
    exact = flat if flat.dtype is torch.float64 and abilities(flat.device).double else flat.float()
    on_cpu = not abilities(exact.device).own_memory
    # On a CPU the single-precision norm of a million numbers is wrong in the fifth digit.
    norm = torch.linalg.vector_norm(exact, dtype=torch.float64 if on_cpu else exact.dtype)
    if on_cpu and math.isfinite(norm):  # no wait is needed, and there is rarely anything to count
        nan = inf = exact.new_zeros(())
    else:
        nan = exact.ne(exact).sum(dtype=exact.dtype)
        inf = exact.abs().eq(math.inf).sum(dtype=exact.dtype)
    minimum, maximum = torch.aminmax(exact)
    plain = torch.stack([minimum, maximum, exact.sum(), norm.to(exact.dtype), nan, inf])
    signs, row_signs = weights("signs", exact.device, exact.dtype)
    rows = _in_rows(exact)
    sums = (rows * signs[: rows.shape[1]]).view(len(rows), -1, BUCKETS).sum(1)
    return torch.cat([plain, (sums * _repeated(row_signs, len(rows))[:, None]).sum(0)])


def _integers(flat: Tensor) -> Tensor:
    small = flat.to(torch.uint8) if flat.dtype is torch.bool else flat
    minimum, maximum = torch.aminmax(small)
    zeros = minimum.new_zeros(PLAIN - 2)
    # As the largest integer type: the hash distinguishes values, these figures only describe them.
    return torch.cat([torch.stack([minimum, maximum]), zeros]).to(torch.int64)


def _in_rows(flat: Tensor) -> Tensor:
    """The elements in rows, with zeros at the end of the last one."""
    length = row_length(flat.numel())
    missing = -flat.numel() % length
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, length)


def row_length(count: int) -> int:
    """The length of a row, a multiple of 16 that depends only on the number of elements.

    >>> row_length(768), row_length(10)
    (256, 16)
    """
    length = math.gcd(count, ROW)
    return length if length >= 256 else ROW if count > ROW else -(-count // BUCKETS) * BUCKETS


def _repeated(values: Tensor, count: int) -> Tensor:
    return values[:count] if count <= len(values) else values.repeat(-(-count // len(values)))[:count]


_made: dict[tuple[str, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}


def weights(kind: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Fixed signs or odd numbers for the elements of a row and for the rows, the same on every device."""
    key = kind, device, dtype
    if key not in _made:
        scrambled = torch.arange(1, 2 * ROW + 1, dtype=torch.int64) * 0x9E3779B1
        scrambled = (scrambled ^ (scrambled >> 15)) * 0x85EBCA77
        scrambled = ((scrambled ^ (scrambled >> 13)) & 0x7FFFFFFF).to(torch.int64)
        chosen = (scrambled >> 7 & 1) * 2 - 1 if kind == "signs" else scrambled | 1
        made = chosen.to(dtype).to(device)
        _made[key] = made[:ROW], made[ROW:]
    return _made[key]
