"""Tensors whose statistics are on their way: started at once, fetched together."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import struct
from binascii import b2a_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from npukit.precision.dump import BUCKETS
from npukit.precision.recording.statistics import Statistics, figures_of, hash_of, statistics_from, undisturbed

if TYPE_CHECKING:
    from npukit.precision.recording.fused import Lines

_FUSED = (torch.float32, torch.float16, torch.bfloat16)
MANY = 12  # tensors for which the table that a common launch needs is worth its while
_SINGLES, _DOUBLES = struct.Struct(f"<{BUCKETS}f").pack, struct.Struct(f"<{BUCKETS}d").pack
# msprobe refuses a dump with a text that begins like a formula of a spreadsheet, as a sketch may: hence the colon.
_FIGURES = '"Max": %s, "Min": %s, "Mean": %s, "Norm": %s, "Nan": %d, "Inf": %d, "Hash": "%08x", "Sketch": ":%s"'
_SINGLE_FIGURES = _FIGURES.replace("%s, ", "%.9g, ").replace("%d", "0")  # as many digits as single precision has
_DOUBLE_FIGURES = _FIGURES.replace("%s, ", "%r, ").replace("%d", "0")


class Cell:
    """The figures of a tensor, once they have been fetched."""

    __slots__ = ("_text", "count", "dtype", "hash", "row")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.count = tensor.dtype, tensor.numel() * (2 if tensor.is_complex() else 1)
        self.row: list[float] = []
        self.hash = 0
        self._text = ""

    @property
    def statistics(self) -> Statistics:
        return statistics_from(self.row, self.hash, self.count, self.dtype.is_floating_point or self.dtype.is_complex)

    @property
    def text(self) -> str:
        """As a dump has it: msprobe's keys, and after them our own."""
        if not self._text:
            self._text = _text(self.row, self.hash, self.count, self.dtype)
        return self._text


class Batch:
    """Computes statistics on the device, without a wait until `take`.

    >>> batch = Batch()
    >>> cell = batch.add(torch.ones(2, 3))
    >>> batch.take()
    >>> cell.statistics.norm
    2.449489742783178
    """

    def __init__(self) -> None:
        self._plain: list[tuple[Cell, Tensor, Tensor]] = []  # with figures and hash
        self._fused: dict[int, tuple[Lines, list[Cell]]] = {}  # by the number of a GPU

    def __len__(self) -> int:
        return len(self._plain) + sum([len(cells) for _, cells in self._fused.values()])

    def add(self, tensor: Tensor) -> Cell:
        """Start on a tensor, as it is now."""
        cell = Cell(tensor)
        if _is_fused(tensor):
            if not tensor.is_contiguous():
                with undisturbed():
                    tensor = tensor.contiguous()
            lines, cells = self._fused.get(tensor.get_device()) or self._begin(tensor.device)
            lines.add(tensor)
            cells.append(cell)
            return cell
        with undisturbed():
            flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().reshape(-1)
            self._plain.append((cell, figures_of(flat), hash_of(flat)))
        return cell

    def add_all(self, tensors: Sequence[Tensor]) -> list[Cell]:
        """Start on many tensors, with one launch where they are alike."""
        first = tensors[0]
        alike = len(tensors) >= MANY and all(
            each.dtype is first.dtype and each.device == first.device for each in tensors
        )
        if not (alike and _is_fused(first)):
            return [self.add(each) for each in tensors]
        lines, cells = self._fused.get(first.get_device()) or self._begin(first.device)
        made = [Cell(each) for each in tensors]
        with undisturbed():
            lines.add_all([each.contiguous() for each in tensors])
        cells += made
        return made

    def take(self) -> None:
        """Fill the cells of all tensors since the last call: the only wait for the device."""
        with undisturbed():
            for lines, cells in self._fused.values():
                for cell, row, number in zip(cells, *lines.take(), strict=True):
                    cell.row, cell.hash = row, number
                cells.clear()
            rows = _together([figures for _, figures, _ in self._plain])
            numbers = _together([hashed for _, _, hashed in self._plain])
        for (cell, _, _), row, number in zip(self._plain, rows, numbers, strict=True):
            cell.row, cell.hash = row, number
        self._plain = []

    def _begin(self, device: torch.device) -> tuple[Lines, list[Cell]]:
        from npukit.precision.recording.fused import Lines

        with undisturbed():
            self._fused[device.index] = Lines(device), []
        return self._fused[device.index]


def _is_fused(tensor: Tensor) -> bool:
    return (
        tensor.is_cuda
        and tensor.dtype in _FUSED
        and has_triton()
        and tensor.get_device() == torch._C._cuda_getDevice()  # where Triton starts its kernels
    )


@functools.cache
def has_triton() -> bool:
    """Whether one pass over a tensor can give all of its figures."""
    return importlib.util.find_spec("triton") is not None


def statistics_of(tensor: Tensor) -> Statistics:
    """The statistics of one tensor.

    >>> statistics_of(torch.ones(2, 3)).maximum
    1.0
    """
    batch = Batch()
    cell = batch.add(tensor)
    batch.take()
    return cell.statistics


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


def _text(row: list[float], number: int, count: int, dtype: torch.dtype) -> str:
    smallest, largest, total, norm, nan, inf, *sketch = row
    if not (dtype.is_floating_point or dtype.is_complex):
        plain = [str(bool(each) if dtype is torch.bool else each).lower() for each in (largest, smallest)]
        return _FIGURES % (*plain, "null", "null", 0, 0, number & 0xFFFFFFFF, "")
    figures = (largest, smallest, total / count, norm)
    if nan or inf or not (math.isfinite(norm) and math.isfinite(total)):  # finite values, too, can have an infinite sum
        return _FIGURES % (*map(json.dumps, figures), nan, inf, number & 0xFFFFFFFF, _packed(sketch, dtype))
    form = _DOUBLE_FIGURES if dtype is torch.float64 else _SINGLE_FIGURES
    return form % (*figures, number & 0xFFFFFFFF, _packed(sketch, dtype))


def _packed(sketch: list[float], dtype: torch.dtype) -> str:
    """A sketch as the bytes of its numbers: it is for machines, and text of them would be most of a dump."""
    try:
        packed = (_DOUBLES if dtype is torch.float64 else _SINGLES)(*sketch)
    except OverflowError:
        packed = _DOUBLES(*sketch)
    return b2a_base64(packed, newline=False).decode()
