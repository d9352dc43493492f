"""Compute the statistics of tensors asynchronously: they are started at once and fetched together."""

from __future__ import annotations

import functools
import importlib.util
import json
import struct
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from npukit.launch.abilities import abilities
from npukit.precision.dump import BUCKETS
from npukit.precision.recording.statistics import PLAIN, Statistics, figures_of, hash_of, statistics_from, undisturbed

if TYPE_CHECKING:
    from npukit.precision.recording.fused import PendingStatistics

_FUSED = (torch.float32, torch.float16, torch.bfloat16)
MANY = 12  # from this many tensors on, the table that a combined launch needs pays off
_SINGLES, _DOUBLES = struct.Struct(f"<{BUCKETS}f").pack, struct.Struct(f"<{BUCKETS}d").pack
# msprobe rejects dumps with text that looks like a spreadsheet formula, which a sketch could: hence the colon.
_FIGURES = '"Max": %s, "Min": %s, "Mean": %s, "Norm": %s, "Nan": %d, "Inf": %d, "Hash": "%08x", "Sketch": ":%s"'
# For finite single-precision numbers, with all their digits.
_SINGLE_FIGURES = _FIGURES.replace("%s, ", "%.9g, ").replace("%d", "0").replace(":%s", ":%s==")
_LARGEST_SINGLE = torch.finfo(torch.float32).max


class Cell:
    """The place in a row's text for a tensor's figures, once they have been fetched."""

    __slots__ = ("count", "dtype", "text")

    def __init__(self, tensor: Tensor, dtype: torch.dtype) -> None:
        self.dtype, self.count = dtype, tensor.numel() * (2 if dtype.is_complex else 1)
        self.text = ""  # the JSON text: msprobe's keys followed by ours


class Arriving:
    """A tensor that is being copied from its device to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._there = tensor.to("cpu", non_blocking=True)
        self._event = None
        if abilities(tensor.device).own_memory:
            module = getattr(torch, tensor.device.type)
            self._event = module.Event()
            self._event.record(module.current_stream(tensor.device))

    @property
    def is_under_way(self) -> bool:
        """Whether the copy comes from a device."""
        return self._event is not None

    def wait(self) -> Tensor:
        """Wait for the copy and return the tensor."""
        if self._event is not None:
            self._event.synchronize()
        return self._there


class StatisticsBatch:
    """Computes statistics on the device. Nothing waits until the function that `take` returns is called.

    >>> batch = StatisticsBatch()
    >>> cell = batch.add(torch.ones(2, 3))
    >>> fill, on_device = batch.take()
    >>> fill()
    >>> cell.text[:27]
    '"Max": 1, "Min": 1, "Mean":'
    """

    def __init__(self) -> None:
        self.waiting = 0  # tensors since the last `take`
        self._plain: list[tuple[Cell, Tensor, Tensor]] = []  # with figures and hash
        self._fused: dict[int, tuple[PendingStatistics, list[Cell]]] = {}  # by GPU number

    def add(self, tensor: Tensor) -> Cell:
        """Start computing the statistics of a tensor as it is now."""
        dtype = tensor.dtype
        cell = Cell(tensor, dtype)
        self.waiting += 1
        if dtype in _FUSED and _is_fused(tensor):
            if not tensor.is_contiguous():
                with undisturbed():
                    tensor = tensor.contiguous()
            lines, cells = self._fused.get(tensor.get_device()) or self._begin(tensor.device)
            lines.add(tensor)
            cells.append(cell)
            return cell
        with undisturbed():
            flat = flattened(tensor)
            self._plain.append((cell, figures_of(flat), hash_of(flat)))
        return cell

    def add_all(self, tensors: Sequence[Tensor]) -> list[Cell]:
        """Start on many tensors of one dtype, with a single launch if they are on one device."""
        first, dtype = tensors[0], tensors[0].dtype
        device = first.get_device()
        alike = len(tensors) >= MANY and dtype in _FUSED and all(tensor.get_device() == device for tensor in tensors)
        if not (alike and _is_fused(first)):
            return [self.add(tensor) for tensor in tensors]
        lines, cells = self._fused.get(device) or self._begin(first.device)
        made = [Cell(tensor, dtype) for tensor in tensors]
        self.waiting += len(made)
        with undisturbed():
            lines.add_all([tensor.contiguous() for tensor in tensors])
        cells += made
        return made

    def take(self) -> tuple[Callable[[], None], bool]:
        """Start fetching the figures of all tensors since the last call. The returned function waits for them, fills
        their cells, and returns whether any of them came from a device.
        """
        fetched: list[tuple[list[Cell], Arriving, Arriving | None]] = []  # with figures and hashes, or both in one
        with undisturbed():
            for lines, cells in self._fused.values():
                if cells:
                    fetched.append((cells.copy(), Arriving(lines.take()), None))
                    cells.clear()
            alike: dict[tuple[torch.device, torch.dtype], list[tuple[Cell, Tensor, Tensor]]] = {}
            for cell, figures, hashes in self._plain:
                alike.setdefault((figures.device, figures.dtype), []).append((cell, figures, hashes))
            for group in alike.values():  # one transfer per device and dtype
                all_figures, all_hashes = torch.stack([row[1] for row in group]), torch.stack([row[2] for row in group])
                fetched.append(([cell for cell, _, _ in group], Arriving(all_figures), Arriving(all_hashes)))
        self._plain, self.waiting = [], 0

        def fill() -> None:
            with undisturbed():
                for cells, figures, hashes in fetched:
                    if hashes is None:
                        _fill(cells, *_halves(figures.wait()))
                    else:
                        _fill(cells, figures.wait(), hashes.wait().tolist())

        return fill, any(figures.is_under_way for _, figures, _ in fetched)

    def _begin(self, device: torch.device) -> tuple[PendingStatistics, list[Cell]]:
        from npukit.precision.recording.fused import PendingStatistics

        with undisturbed():
            self._fused[device.index] = PendingStatistics(device), []
        return self._fused[device.index]


def _is_fused(tensor: Tensor) -> bool:
    # Triton launches kernels on the current device.
    return tensor.is_cuda and has_triton() and tensor.get_device() == torch._C._cuda_getDevice()


@functools.cache
def has_triton() -> bool:
    """Whether a single pass over a tensor can compute all of its figures."""
    return importlib.util.find_spec("triton") is not None


def statistics_of(tensor: Tensor) -> Statistics:
    """The statistics of one tensor.

    >>> statistics_of(torch.ones(2, 3)).maximum
    1.0
    """
    with undisturbed():
        flat = flattened(tensor)
        figures, number = figures_of(flat).tolist(), int(hash_of(flat))
    return statistics_from(figures, number, flat.numel(), flat.is_floating_point())


def flattened(tensor: Tensor) -> Tensor:
    """The numbers of a tensor as they are read, also for a lazy conjugate. A complex number counts as two."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _fill(cells: Sequence[Cell], figures: Tensor, hashes: list[int]) -> None:
    """Set the text of each cell from its line of figures."""
    if not figures.is_floating_point():
        for cell, (low, high, *_), number in zip(cells, figures.tolist(), hashes, strict=True):
            plain = [str(bool(bound) if cell.dtype is torch.bool else bound).lower() for bound in (high, low)]
            cell.text = _FIGURES % (*plain, "null", "null", 0, 0, number & 0xFFFFFFFF, "")
        return
    wide = figures.double()
    in_range = (wide.abs() <= _LARGEST_SINGLE).all(1)  # neither NaN nor Inf
    usual = (in_range & (wide[:, 4:PLAIN] == 0).all(1)).tolist()
    sketches, place = _packed_singles(wide[:, PLAIN:].float()), 0
    for cell, (low, high, total, norm), number, is_usual in zip(
        cells, wide[:, :4].tolist(), hashes, usual, strict=True
    ):
        if is_usual and cell.dtype is not torch.float64:
            sketch = sketches[place : place + 86]
            cell.text = _SINGLE_FIGURES % (high, low, total / cell.count, norm, number & 0xFFFFFFFF, sketch)
        else:
            cell.text = _unusual_text(cell, wide[place // 88].tolist(), number & 0xFFFFFFFF)
        place += 88


def _halves(lines: Tensor) -> tuple[Tensor, list[int]]:
    """Separate the figures and hashes that the fused kernels return together."""
    figures = lines[:, :-1].view(torch.float64)
    figures[:, 3].sqrt_()
    figures[figures[:, 4] > 0, :2] = torch.nan  # as elsewhere in torch
    return figures, lines[:, -1].tolist()


def _unusual_text(cell: Cell, line: list[float], number: int) -> str:
    low, high, total, norm, nan, inf, *sketch = line
    figures = (high, low, total / cell.count, norm)
    return _FIGURES % (*map(json.dumps, figures), nan, inf, number, _packed(sketch, cell.dtype))


def _packed_singles(sketches: Tensor) -> str:
    """Base64 of many sketches, 88 characters each: two padding bytes make a sketch's 64 bytes divisible by three."""
    padded = torch.zeros(len(sketches), 66, dtype=torch.uint8)
    padded[:, :64] = sketches.view(torch.uint8)
    return b2a_base64(padded.numpy().tobytes(), newline=False).decode()


def _packed(sketch: list[float], dtype: torch.dtype) -> str:
    """A sketch as binary numbers: only machines read it, and as text it would be most of a dump."""
    try:
        packed = (_DOUBLES if dtype is torch.float64 else _SINGLES)(*sketch)
    except OverflowError:
        packed = _DOUBLES(*sketch)
    return b2a_base64(packed, newline=False).decode()
