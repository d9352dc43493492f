"""Tensors whose statistics are on their way: started at once, fetched together."""

from __future__ import annotations

import functools
import importlib.util
import math
import struct
from base64 import b64encode
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from npukit.precision.recording.statistics import Statistics, figures_of, hash_of, statistics_from, undisturbed

if TYPE_CHECKING:
    from npukit.precision.recording.fused import Lines

_FUSED = (torch.float32, torch.float16, torch.bfloat16)


class Cell:
    """The statistics of a tensor, once they have been fetched."""

    __slots__ = ("_text", "count", "dtype", "statistics")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.count = tensor.dtype, tensor.numel() * (2 if tensor.is_complex() else 1)
        self.statistics: Statistics | None = None
        self._text = ""

    @property
    def text(self) -> str:
        """As a dump has it: msprobe's keys, and after them our own."""
        if not self._text and self.statistics:
            self._text = _text(self.statistics, self.dtype)
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
        alike = all(each.dtype is first.dtype and each.device == first.device for each in tensors)
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
                    cell.statistics = statistics_from(row, number, cell.count, True)
            rows = _together([figures for _, figures, _ in self._plain])
            numbers = _together([hashed for _, _, hashed in self._plain])
        self._fused.clear()
        for (cell, _, _), row, number in zip(self._plain, rows, numbers, strict=True):
            floating = cell.dtype.is_floating_point or cell.dtype.is_complex
            cell.statistics = statistics_from(row, number, cell.count, floating)
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
        and tensor.get_device() == torch.cuda.current_device()  # where Triton starts its kernels
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
    assert cell.statistics is not None
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


def _text(found: Statistics, dtype: torch.dtype) -> str:
    if found.mean is None or found.norm is None:
        largest, smallest = (str(v).lower() if dtype is not torch.bool else ("true" if v else "false")
                             for v in (found.maximum, found.minimum))  # fmt: skip
        mean = norm = "null"
    else:
        smallest, largest, mean, norm = map(_number, (found.minimum, found.maximum, found.mean, found.norm))
    return (
        f'"Max": {largest}, "Min": {smallest}, "Mean": {mean}, "Norm": {norm}, "Nan": {found.nan}, "Inf": {found.inf}, '
        f'"Hash": "{found.hash}", "Sketch": "{_packed(found.sketch, dtype)}"'
    )


def _number(value: float) -> str:
    return (
        repr(value) if math.isfinite(value) else "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    )


def _packed(sketch: tuple[float, ...], dtype: torch.dtype) -> str:
    """A sketch as the bytes of its numbers: it is for machines, and text of them would be most of a dump."""
    try:
        packed = struct.pack(f"<{len(sketch)}{'d' if dtype is torch.float64 else 'f'}", *sketch)
    except OverflowError:
        packed = struct.pack(f"<{len(sketch)}d", *sketch)
    return b64encode(packed).decode()
