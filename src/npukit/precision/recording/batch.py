"""Tensors whose statistics are on their way: started at once, fetched together."""

from __future__ import annotations

import functools
import importlib.util
import json
import struct
from binascii import b2a_base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from npukit.precision.dump import BUCKETS
from npukit.precision.recording.statistics import PLAIN, Statistics, figures_of, hash_of, statistics_from, undisturbed

if TYPE_CHECKING:
    from npukit.precision.recording.fused import Lines

_FUSED = (torch.float32, torch.float16, torch.bfloat16)
MANY = 12  # tensors for which the table that a common launch needs is worth its while
_SINGLES, _DOUBLES = struct.Struct(f"<{BUCKETS}f").pack, struct.Struct(f"<{BUCKETS}d").pack
# msprobe refuses a dump with a text that begins like a formula of a spreadsheet, as a sketch may: hence the colon.
_FIGURES = '"Max": %s, "Min": %s, "Mean": %s, "Norm": %s, "Nan": %d, "Inf": %d, "Hash": "%08x", "Sketch": ":%s"'
# Of finite singles, with as many digits as they have.
_SINGLE_FIGURES = _FIGURES.replace("%s, ", "%.9g, ").replace("%d", "0").replace(":%s", ":%s==")
_LARGEST_SINGLE = torch.finfo(torch.float32).max


class Cell:
    """The figures of a tensor, once they have been fetched."""

    __slots__ = ("_all", "_place", "count", "dtype", "hash", "text")

    def __init__(self, tensor: Tensor) -> None:
        self.dtype, self.count = tensor.dtype, tensor.numel() * (2 if tensor.is_complex() else 1)
        self.text = ""  # as a dump has it: msprobe's keys, and after them our own

    def fill(self, figures: Tensor, place: int, number: int) -> None:
        """Its figures are a line of those of many tensors."""
        self._all, self._place, self.hash = figures, place, number & 0xFFFFFFFF

    @property
    def figures(self) -> list[float]:
        return self._all[self._place].tolist()

    @property
    def statistics(self) -> Statistics:
        floating = self.dtype.is_floating_point or self.dtype.is_complex
        return statistics_from(self.figures, self.hash, self.count, floating)


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
                _fill(cells, *lines.take())
                cells.clear()
            alike: dict[tuple[torch.device, torch.dtype], list[tuple[Cell, Tensor, Tensor]]] = {}
            for each in self._plain:
                alike.setdefault((each[1].device, each[1].dtype), []).append(each)
            for group in alike.values():  # one transfer for each device and type
                figures, hashes = torch.stack([each[1] for each in group]), torch.stack([each[2] for each in group])
                _fill([cell for cell, _, _ in group], figures.cpu(), hashes.tolist())
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


def _fill(cells: Sequence[Cell], figures: Tensor, hashes: list[int]) -> None:
    """Give each cell its line of figures, and its text."""
    for place, (cell, number) in enumerate(zip(cells, hashes, strict=True)):
        cell.fill(figures, place, number)
    if figures.is_floating_point() and len(figures):
        wide = figures.double()
        in_range = (wide.abs() <= _LARGEST_SINGLE).all(1)  # neither NaN nor Inf
        usual = (in_range & (wide[:, 4:PLAIN] == 0).all(1)).tolist()
        sketches = _packed_singles(wide[:, PLAIN:].float())
        for place, (cell, (low, high, total, norm)) in enumerate(zip(cells, wide[:, :4].tolist(), strict=True)):
            if usual[place] and cell.dtype is not torch.float64:
                sketch = sketches[place * 88 : place * 88 + 86]
                cell.text = _SINGLE_FIGURES % (high, low, total / cell.count, norm, cell.hash, sketch)
    for cell in cells:
        cell.text = cell.text or _text(cell)


def _text(cell: Cell) -> str:
    low, high, total, norm, nan, inf, *sketch = cell.figures
    if not (cell.dtype.is_floating_point or cell.dtype.is_complex):
        plain = [str(bool(each) if cell.dtype is torch.bool else each).lower() for each in (high, low)]
        return _FIGURES % (*plain, "null", "null", 0, 0, cell.hash, "")
    figures = (high, low, total / cell.count, norm)
    return _FIGURES % (*map(json.dumps, figures), nan, inf, cell.hash, _packed(sketch, cell.dtype))


def _packed_singles(sketches: Tensor) -> str:
    """Base64 of many sketches: 88 characters each, as two zero bytes more make the 64 of one a number of triples."""
    padded = torch.zeros(len(sketches), 66, dtype=torch.uint8)
    padded[:, :64] = sketches.view(torch.uint8)
    return b2a_base64(padded.numpy().tobytes(), newline=False).decode()


def _packed(sketch: list[float], dtype: torch.dtype) -> str:
    """A sketch as the bytes of its numbers: it is for machines, and text of them would be most of a dump."""
    try:
        packed = (_DOUBLES if dtype is torch.float64 else _SINGLES)(*sketch)
    except OverflowError:
        packed = _DOUBLES(*sketch)
    return b2a_base64(packed, newline=False).decode()
