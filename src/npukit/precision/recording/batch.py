"""Tensors whose statistics are on their way: started at once, fetched together."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import struct
from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from npukit.precision.recording.statistics import (
    Statistics,
    figures_of,
    hash_of,
    hash_text,
    statistics_from,
    undisturbed,
)

if TYPE_CHECKING:
    from npukit.precision.recording.fused import Lines

_FUSED = (torch.float32, torch.float16, torch.bfloat16)
MANY = 12  # tensors for which the table that a common launch needs is worth its while


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
        self._fused: dict[torch.device, list[Cell]] = defaultdict(list)
        self._lines: dict[torch.device, Lines] = {}

    def __len__(self) -> int:
        return len(self._plain) + sum(map(len, self._fused.values()))

    def add(self, tensor: Tensor) -> Cell:
        """Start on a tensor, as it is now."""
        cell = Cell(tensor)
        if _is_fused(tensor):
            if not tensor.is_contiguous():
                with undisturbed():
                    tensor = tensor.contiguous()
            self._on(tensor.device).add(tensor)
            self._fused[tensor.device].append(cell)
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
        cells = [Cell(each) for each in tensors]
        with undisturbed():
            self._on(first.device).add_all([each.contiguous() for each in tensors])
        self._fused[first.device] += cells
        return cells

    def take(self) -> None:
        """Fill the cells of all tensors since the last call: the only wait for the device."""
        with undisturbed():
            for device, cells in self._fused.items():
                for cell, row, number in zip(cells, *self._lines[device].take(), strict=True):
                    cell.row, cell.hash = row, number
            rows = _together([figures for _, figures, _ in self._plain])
            numbers = _together([hashed for _, _, hashed in self._plain])
        self._fused.clear()
        for (cell, _, _), row, number in zip(self._plain, rows, numbers, strict=True):
            cell.row, cell.hash = row, number
        self._plain = []

    def _on(self, device: torch.device) -> Lines:
        if device not in self._lines:
            from npukit.precision.recording.fused import Lines

            with undisturbed():
                self._lines[device] = Lines(device)
        return self._lines[device]


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
        plain += ["null", "null"]
    elif nan or inf or not math.isfinite(norm):
        plain = [json.dumps(each) for each in (largest, smallest, total / count, norm)]
    else:
        plain = [repr(largest), repr(smallest), repr(total / count), repr(norm)]
    return (
        f'"Max": {plain[0]}, "Min": {plain[1]}, "Mean": {plain[2]}, "Norm": {plain[3]}, "Nan": {int(nan)}, '
        f'"Inf": {int(inf)}, "Hash": "{hash_text(number)}", "Sketch": "{_packed(sketch, dtype)}"'
    )


def _packed(sketch: list[float], dtype: torch.dtype) -> str:
    """A sketch as the bytes of its numbers: it is for machines, and text of them would be most of a dump."""
    try:
        packed = struct.pack(f"<{len(sketch)}{'d' if dtype is torch.float64 else 'f'}", *sketch)
    except OverflowError:
        packed = struct.pack(f"<{len(sketch)}d", *sketch)
    return b64encode(packed).decode()
