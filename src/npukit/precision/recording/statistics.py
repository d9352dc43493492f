"""Statistics of tensors, computed where they are: nothing waits for the device until `take` fetches a whole batch.

Beside minimum, maximum, mean, L2 norm and counts of NaN and Inf there are two figures that make a dump without tensors
nearly as good as one with them:
- a hash of the values in their logical order, exact in integers: equal bits give equal hashes, whatever the layout;
- a sketch: each element goes into one of 16 sums with a fixed sign. It is linear, so the distance between the sketches
  of two tensors estimates the L2 norm of their difference, although neither run has ever seen the other.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BUCKETS = 16
_ROW = 4096  # elements that share one pattern of signs
_PLAIN = 6  # minimum, maximum, sum, norm, NaN, Inf


@dataclass(frozen=True)
class Statistics:
    """What is kept of a tensor."""

    minimum: float
    maximum: float
    mean: float | None = None  # None: integers and bool
    norm: float | None = None
    nan: int = 0
    inf: int = 0
    hash: str = ""
    sketch: tuple[float, ...] = ()


class Batch:
    """Tensors whose statistics are on their way.

    >>> batch = Batch()
    >>> batch.add(torch.ones(2, 3))
    0
    >>> batch.take()[0].norm
    2.449489742783178
    """

    def __init__(self) -> None:
        self._figures: list[Tensor] = []
        self._hashes: list[Tensor] = []
        self._shapes: list[tuple[int, bool, bool]] = []  # number of elements, whether floating point, whether partial

    def __len__(self) -> int:
        return len(self._figures)

    def add(self, tensor: Tensor) -> int:
        """Start on a tensor; returns its place in what `take` gives."""
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        flat = values.detach().reshape(-1)
        floating = flat.is_floating_point()
        partial = flat.is_cuda and flat.dtype in (torch.float32, torch.float16, torch.bfloat16) and has_triton()
        if partial:
            figures, hashes = _partials(flat.contiguous())
        else:
            figures, hashes = _floating(flat) if floating else _integers(flat), _hash(flat)
        self._figures.append(figures)
        self._hashes.append(hashes)
        self._shapes.append((flat.numel(), floating, partial))
        return len(self._figures) - 1

    def take(self) -> list[Statistics]:
        """The statistics of all tensors since the last call, in order: the only wait for the device."""
        if not self._figures:
            return []
        parts = [place for place, (_, _, partial) in enumerate(self._shapes) if partial]
        if parts:
            self._add_up(parts)
        figures, hashes = _together(self._figures), _together(self._hashes)
        found = [
            _statistics(row, number, count, floating)
            for row, number, (count, floating, _) in zip(figures, hashes, self._shapes, strict=True)
        ]
        self._figures, self._hashes, self._shapes = [], [], []
        return found

    def _add_up(self, places: list[int]) -> None:
        """Make one line of the partial lines of each tensor, on the host."""
        figures = torch.cat([self._figures[place] for place in places]).cpu().double()
        hashes = torch.cat([self._hashes[place] for place in places]).cpu()
        counts = torch.tensor([len(self._hashes[place]) for place in places])
        owner = torch.repeat_interleave(torch.arange(len(places)), counts)
        whole = torch.zeros(len(places), figures.shape[1], dtype=torch.float64).index_add_(0, owner, figures)
        for column, reduction in ((0, "amin"), (1, "amax")):
            one = whole[:, column].clone()
            whole[:, column] = one.scatter_reduce(0, owner, figures[:, column], reduction, include_self=False)
        whole[:, 3].sqrt_()
        whole[whole[:, 4] > 0, :2] = math.nan  # as everywhere else in torch
        sums = torch.zeros(len(places), dtype=torch.int64).index_add_(0, owner, hashes)
        for place, line, number in zip(places, whole.unbind(), sums.unbind(), strict=True):
            self._figures[place], self._hashes[place] = line, number


@functools.cache
def has_triton() -> bool:
    """Whether one pass over a tensor can give all of its figures."""
    return importlib.util.find_spec("triton") is not None


def _partials(flat: Tensor) -> tuple[Tensor, Tensor]:
    from npukit.precision.recording.fused import partials

    signs = _weights("signs", flat.device, torch.float32)
    return partials(flat, _row_length(flat.numel()), signs, _weights("odd", flat.device, torch.int32), BUCKETS)


def statistics_of(tensor: Tensor) -> Statistics:
    """The statistics of one tensor.

    >>> statistics_of(torch.ones(2, 3)).maximum
    1.0
    """
    batch = Batch()
    batch.add(tensor)
    return batch.take()[0]


def _together(rows: Sequence[Tensor]) -> list[Any]:
    """Rows as plain numbers, with one transfer for each device and type."""
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault((row.device, row.dtype), []).append(place)
    result: list[Any] = [None] * len(rows)
    for mine in places.values():
        for place, row in zip(mine, torch.stack([rows[place] for place in mine]).tolist(), strict=True):
            result[place] = row
    return result


def _statistics(row: list[float], number: int, count: int, floating: bool) -> Statistics:
    minimum, maximum, total, norm, nan, inf = row[:_PLAIN]
    hashed = f"{number & 0xFFFFFFFFFFFFFFFF:016x}"
    if not floating:
        return Statistics(minimum, maximum, hash=hashed)
    return Statistics(minimum, maximum, total / count, norm, int(nan), int(inf), hashed, tuple(row[_PLAIN:]))


def _floating(flat: Tensor) -> Tensor:
    # NPUs have no double; and half precision has too few digits for a sum.
    exact = flat if flat.dtype is torch.float64 and flat.device.type in ("cpu", "cuda") else flat.float()
    minimum, maximum = torch.aminmax(exact)
    nan = exact.ne(exact).sum(dtype=exact.dtype)
    inf = exact.abs().eq(math.inf).sum(dtype=exact.dtype)
    # On a CPU the norm of a million numbers in single precision is off in the fifth digit.
    norm = torch.linalg.vector_norm(exact, dtype=torch.float64 if exact.device.type == "cpu" else exact.dtype)
    plain = torch.stack([minimum, maximum, exact.sum(), norm.to(exact.dtype), nan, inf])
    signs, row_signs = _weights("signs", exact.device, exact.dtype)
    rows = _in_rows(exact)
    sums = (rows * signs[: rows.shape[1]]).view(len(rows), -1, BUCKETS).sum(1)
    return torch.cat([plain, (sums * _repeated(row_signs, len(rows))[:, None]).sum(0)])


def _integers(flat: Tensor) -> Tensor:
    small = flat.to(torch.uint8) if flat.dtype is torch.bool else flat
    minimum, maximum = torch.aminmax(small)
    zeros = minimum.new_zeros(_PLAIN - 2)
    # As the largest integer type: a hash tells values apart, these two only describe them.
    return torch.cat([torch.stack([minimum, maximum]), zeros]).to(torch.int64)


def _hash(flat: Tensor) -> Tensor:
    if flat.dtype is torch.bool:
        flat = flat.to(torch.uint8)
    size = flat.dtype.itemsize
    bits = flat.contiguous().view({1: torch.uint8, 2: torch.int16}.get(size, torch.int32)).to(torch.int32)
    weights, row_weights = _weights("odd", flat.device, torch.int32)
    rows = _in_rows(bits)
    return ((rows * weights[: rows.shape[1]]).sum(1) * _repeated(row_weights, len(rows))).sum()


def _in_rows(flat: Tensor) -> Tensor:
    """The elements in rows; zeros fill the last one."""
    length = _row_length(flat.numel())
    missing = -flat.numel() % length
    return (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(-1, length)


def _row_length(count: int) -> int:
    """The length of a row, which depends on the number of elements alone."""
    length = math.gcd(count, _ROW)
    return length if length >= 256 else _ROW if count > _ROW else -(-count // BUCKETS) * BUCKETS


def _repeated(values: Tensor, count: int) -> Tensor:
    return values[:count] if count <= len(values) else values.repeat(-(-count // len(values)))[:count]


_made: dict[tuple[str, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}


def _weights(kind: str, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Fixed signs, or fixed odd numbers, of the elements of a row and of the rows: the same on every device."""
    key = kind, device, dtype
    if key not in _made:
        scrambled = torch.arange(1, 2 * _ROW + 1, dtype=torch.int64) * 0x9E3779B1
        scrambled = (scrambled ^ (scrambled >> 15)) * 0x85EBCA77
        scrambled = ((scrambled ^ (scrambled >> 13)) & 0x7FFFFFFF).to(torch.int64)
        chosen = (scrambled >> 7 & 1) * 2 - 1 if kind == "signs" else scrambled | 1
        made = chosen.to(dtype).to(device)
        row = made[_ROW:] if kind == "signs" else made[_ROW:].to(torch.int64)
        _made[key] = made[:_ROW], row
    return _made[key]
