"""Triton kernels that compute all statistics of a tensor in one pass, with the same results as statistics.py.

A program reads 16 rows of a tensor and writes one line of partial figures into an arena on the device. When statistics
are requested, a second kernel sums the lines of each tensor, for a single copy to the host. Launches take only plain
numbers, because passing tensors to Triton costs more than launching the kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from npukit.precision.dump import BUCKETS
from npukit.precision.recording.statistics import PLAIN, ROW, row_length, undisturbed, weights

TYPES = {
    torch.float32: (tl.float32, tl.int32),
    torch.float16: (tl.float16, tl.int16),
    torch.bfloat16: (tl.bfloat16, tl.int16),
}
FIGURES = PLAIN + BUCKETS
_ROWS = 16  # read by each program
_WIDTH = FIGURES + 2  # floats per line, of which the last two are the hash
_CHUNK = 1 << 17  # lines per arena: 12 MB
_TABLE = 1 << 15  # numbers in pinned memory on their way to the device
_SCALARS = ["address", "count", "length", "line", "tables", "arena", "jobs", "starts", "sums"]


@triton.jit  # type: ignore[untyped-decorator]
def _measure(  # type: ignore[no-untyped-def]
    address,
    count,
    length,
    part,
    line,
    tables,
    arena,
    VALUE: tl.constexpr,
    BITS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PLAIN_FIGURES: tl.constexpr,
    BUCKET_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Compute one line; `part` numbers the programs of a tensor. More instructions per element would limit speed."""
    values = address.to(tl.pointer_type(VALUE))
    if ALIGNED:
        values = tl.multiple_of(values, 16)
    signs = tables.to(tl.pointer_type(tl.float32))
    odd = (tables + 8 * BLOCK).to(tl.pointer_type(tl.int32))
    column = tl.arange(0, BLOCK)
    infinity = float("inf")
    smallest = tl.full((BLOCK,), infinity, tl.float32)
    largest = tl.full((BLOCK,), -infinity, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    sketch = tl.zeros((BLOCK,), tl.float32)
    hashed = tl.zeros((BLOCK,), tl.int32)
    inside = column < length
    weight = tl.load(odd + column, mask=inside, other=0)
    first = part.to(tl.int64) * ROWS
    if (length == BLOCK) & ((first + ROWS) * BLOCK <= count):  # nothing to mask
        for four in range(0, ROWS, 4):
            for number in tl.static_range(4):  # issue the loads together
                row = first + four + number
                raw = tl.load(values + row * BLOCK + column)
                value = raw.to(tl.float32)
                smallest = tl.minimum(smallest, value)
                largest = tl.maximum(largest, value)
                total += value
                squares += value * value
                sketch += value * tl.load(signs + BLOCK + row % BLOCK)
                mixed = raw.to(BITS, bitcast=True).to(tl.int32) * weight
                hashed += (mixed ^ ((mixed >> 15) & 0x1FFFF)) * tl.load(odd + BLOCK + row % BLOCK)
    else:
        for number in range(ROWS):
            row = first + number
            place = row * length + column
            here = inside & (place < count)
            raw = tl.load(values + place, mask=here, other=0.0)
            value = raw.to(tl.float32)
            smallest = tl.minimum(smallest, tl.where(here, value, infinity))
            largest = tl.maximum(largest, tl.where(here, value, -infinity))
            total += value
            squares += value * value
            sketch += value * tl.load(signs + BLOCK + row % BLOCK)
            mixed = raw.to(BITS, bitcast=True).to(tl.int32) * weight
            hashed += (mixed ^ ((mixed >> 15) & 0x1FFFF)) * tl.load(odd + BLOCK + row % BLOCK)
    figures = arena.to(tl.pointer_type(tl.float32)) + line * (PLAIN_FIGURES + BUCKET_COUNT + 2)
    tl.store(figures + 4, 0.0)
    tl.store(figures + 5, 0.0)
    all_squares = tl.sum(squares, 0)
    if (all_squares != all_squares) | (all_squares == infinity):  # rare: count them in a second pass
        nans = tl.zeros((BLOCK,), tl.float32)
        infs = tl.zeros((BLOCK,), tl.float32)
        for number in range(ROWS):
            place = (first + number) * length + column
            value = tl.load(values + place, mask=inside & (place < count), other=0.0).to(tl.float32)
            nans += (value != value).to(tl.float32)
            infs += (tl.abs(value) == infinity).to(tl.float32)
        tl.store(figures + 4, tl.sum(nans, 0))
        tl.store(figures + 5, tl.sum(infs, 0))
    tl.store(figures + 0, tl.min(smallest, 0))
    tl.store(figures + 1, tl.max(largest, 0))
    tl.store(figures + 2, tl.sum(total, 0))
    tl.store(figures + 3, all_squares)
    sketch *= tl.load(signs + column, mask=inside, other=0.0)
    buckets = tl.sum(tl.reshape(sketch, (BLOCK // BUCKET_COUNT, BUCKET_COUNT)), 0)
    tl.store(figures + PLAIN_FIGURES + tl.arange(0, BUCKET_COUNT), buckets)
    end = (figures + PLAIN_FIGURES + BUCKET_COUNT).to(tl.pointer_type(tl.int64))
    tl.store(end, tl.sum(hashed.to(tl.int64), 0))


@triton.jit(do_not_specialize=_SCALARS)  # type: ignore[untyped-decorator]
def _measure_one(  # type: ignore[no-untyped-def]
    address: tl.int64,
    count: tl.int64,
    length: tl.int64,
    line: tl.int64,
    tables: tl.int64,
    arena: tl.int64,
    VALUE: tl.constexpr,
    BITS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PLAIN_FIGURES: tl.constexpr,
    BUCKET_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    part = tl.program_id(0)
    _measure(
        address, count, length, part, line + part, tables, arena,
        VALUE, BITS, ALIGNED, PLAIN_FIGURES, BUCKET_COUNT, BLOCK, ROWS,
    )  # fmt: skip


@triton.jit(do_not_specialize=_SCALARS)  # type: ignore[untyped-decorator]
def _measure_all(  # type: ignore[no-untyped-def]
    jobs: tl.int64,
    tables: tl.int64,
    arena: tl.int64,
    VALUE: tl.constexpr,
    BITS: tl.constexpr,
    ALIGNED: tl.constexpr,
    PLAIN_FIGURES: tl.constexpr,
    BUCKET_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Like `_measure_one` for many tensors. `jobs` has the address, size, row length and first line of each."""
    part = tl.program_id(0)
    job = jobs.to(tl.pointer_type(tl.int64)) + tl.program_id(1) * 4
    count, length = tl.load(job + 1), tl.load(job + 2)
    if part.to(tl.int64) * ROWS * length < count:  # the largest one determines the number of programs
        _measure(
            tl.load(job), count, length, part, tl.load(job + 3) + part, tables, arena,
            VALUE, BITS, ALIGNED, PLAIN_FIGURES, BUCKET_COUNT, BLOCK, ROWS,
        )  # fmt: skip


@triton.jit(do_not_specialize=_SCALARS)  # type: ignore[untyped-decorator]
def _add_up(  # type: ignore[no-untyped-def]
    starts: tl.int64, arena: tl.int64, sums: tl.int64, FIGURE_COUNT: tl.constexpr, LINES: tl.constexpr
):
    """Sum the lines of one tensor in double precision."""
    number = tl.program_id(0)
    start = starts.to(tl.pointer_type(tl.int64)) + number
    first, last = tl.load(start), tl.load(start + 1)
    column = tl.arange(0, 32)
    wanted = column < FIGURE_COUNT
    infinity = float("inf")
    smallest = tl.full((32,), infinity, tl.float64)
    largest = tl.full((32,), -infinity, tl.float64)
    total = tl.zeros((32,), tl.float64)
    hashed = tl.zeros((LINES,), tl.int64)
    for line in range(first, last, LINES):
        lines = line + tl.arange(0, LINES)
        here = lines < last
        both = here[:, None] & wanted[None, :]
        place = arena.to(tl.pointer_type(tl.float32)) + lines[:, None] * (FIGURE_COUNT + 2) + column[None, :]
        figures = tl.load(place, mask=both, other=0.0).to(tl.float64)
        total += tl.sum(figures, 0)
        smallest = tl.minimum(smallest, tl.min(tl.where(both, figures, infinity), 0))
        largest = tl.maximum(largest, tl.max(tl.where(both, figures, -infinity), 0))
        ends = arena.to(tl.pointer_type(tl.int64)) + lines * (FIGURE_COUNT // 2 + 1) + FIGURE_COUNT // 2
        hashed += tl.load(ends, mask=here, other=0)
    result = tl.where(column == 0, smallest, tl.where(column == 1, largest, total))
    tl.store(sums.to(tl.pointer_type(tl.float64)) + number * (FIGURE_COUNT + 1) + column, result, mask=wanted)
    tl.store(sums.to(tl.pointer_type(tl.int64)) + number * (FIGURE_COUNT + 1) + FIGURE_COUNT, tl.sum(hashed, 0))


class _Launcher:
    """Launches one kernel repeatedly: the first time through Triton's front end, then directly, which is faster."""

    def __init__(self, kernel: Any, warps: int) -> None:
        self._kernel, self._warps = kernel, warps
        self._compiled: dict[Any, tuple[Any, Any, Any, tuple[Any, ...]]] = {}

    def __call__(self, key: Any, grid: tuple[int, int], scalars: tuple[int, ...], constants: tuple[Any, ...]) -> None:
        """`key` identifies the device and the constants."""
        compiled = self._compiled.get(key)
        if compiled is None:
            made = self._kernel[grid](*scalars, *constants, num_warps=self._warps)
            self._compiled[key] = made.run, made.function, made.packed_metadata, constants
        else:
            run, function, metadata, constants = compiled
            stream = torch._C._cuda_getCurrentRawStream(key[0])
            run(*grid, 1, stream, function, metadata, None, None, None, *scalars, *constants)


_one, _all, _sums = _Launcher(_measure_one, 16), _Launcher(_measure_all, 16), _Launcher(_add_up, 4)


class PendingStatistics:
    """Tensors of one device whose statistics are being computed."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._number = device, device.index
        signs, row_signs = weights("signs", device, torch.float32)
        odd, row_odd = weights("odd", device, torch.int32)
        self._tables = torch.cat([table.view(torch.uint8) for table in (signs, row_signs, odd, row_odd)])
        self._table_address = self._tables.data_ptr()
        self._arenas = [self._new_arena(_CHUNK)]
        self._arena_address = self._arenas[0].data_ptr()
        self._starts: list[list[int]] = [[0]]  # per arena: the first line of each tensor, and the end
        self._streams: set[int] = set()
        self._pinned, self._used = _new_table(_TABLE), 0

    def add(self, flat: Tensor) -> None:
        """Start on a contiguous tensor in half or single precision."""
        count, address, dtype = flat.numel(), flat.data_ptr(), flat.dtype
        length, programs = _layout(count)
        line = self._reserve((programs,))
        scalars = address, count, length, line, self._table_address, self._arena_address
        aligned = address % 16 == 0
        _one((self._number, dtype, aligned), (programs, 1), scalars, _constants(dtype, aligned))

    def add_all(self, tensors: Sequence[Tensor]) -> None:
        """Start on many tensors of one dtype with one launch."""
        counts, addresses = [tensor.numel() for tensor in tensors], [tensor.data_ptr() for tensor in tensors]
        layouts = [_layout(count) for count in counts]
        programs = [needed for _, needed in layouts]
        line = self._reserve(programs)
        table: list[int] = []
        for address, count, (length, needed) in zip(addresses, counts, layouts, strict=True):
            table += (address, count, length, line)
            line += needed
        jobs, aligned = self._sent(table), all(address % 16 == 0 for address in addresses)
        scalars = jobs.data_ptr(), self._table_address, self._arena_address
        dtype = tensors[0].dtype
        _all((self._number, dtype, aligned), (max(programs), len(tensors)), scalars, _constants(dtype, aligned))

    def _sent(self, numbers: list[int]) -> Tensor:
        """Numbers copied to the device without waiting."""
        if self._used + len(numbers) > len(self._pinned):
            self._pinned, self._used = _new_table(max(_TABLE, len(numbers))), 0
        own = self._pinned[self._used : self._used + len(numbers)]
        own.copy_(torch.tensor(numbers, device="cpu"))
        self._used += len(numbers)
        return own.to(self._device, non_blocking=True)

    def take(self) -> Tensor:
        """One line per tensor since the last call, in order: the figures as doubles, with the sum of squares in place
        of the norm, and the hash. There must be at least one tensor.
        """
        with torch.cuda.device(self._device):
            return self._take()

    def _take(self) -> Tensor:
        if len(self._streams) > 1:  # each has written lines that this kernel reads
            torch.cuda.synchronize(self._device)
        all_sums = []
        for arena, starts in zip(self._arenas, self._starts, strict=True):
            if len(starts) > 1:
                table = self._sent(starts)
                sums = torch.empty(len(starts) - 1, FIGURES + 1, dtype=torch.int64, device=self._device)
                addresses = table.data_ptr(), arena.data_ptr(), sums.data_ptr()
                _sums((self._number,), (len(sums), 1), addresses, (FIGURES, 64))
                all_sums.append(sums)
        self._arenas, self._starts = self._arenas[:1], [[0]]
        self._arena_address = self._arenas[0].data_ptr()
        self._streams = {torch._C._cuda_getCurrentRawStream(self._number)}  # the kernel still reads the arena
        self._pinned, self._used = _new_table(_TABLE), 0  # the previous copy may not have finished
        return torch.cat(all_sums)

    def _reserve(self, lines: Sequence[int]) -> int:
        """Reserve lines in the arena for tensors and return the number of the first."""
        stream = torch._C._cuda_getCurrentRawStream(self._number)
        if stream not in self._streams:
            if self._streams:
                torch.cuda.synchronize(self._device)
            self._streams.add(stream)
        starts = self._starts[-1]
        if starts[-1] + sum(lines) > len(self._arenas[-1]):
            self._arenas.append(self._new_arena(max(_CHUNK, sum(lines))))
            self._arena_address = self._arenas[-1].data_ptr()
            starts = [0]
            self._starts.append(starts)
        first = starts[-1]
        for line in lines:
            starts.append(starts[-1] + line)
        return first

    def _new_arena(self, lines: int) -> Tensor:
        with undisturbed():
            return torch.empty(lines, _WIDTH, dtype=torch.float32, device=self._device)


def _new_table(size: int) -> Tensor:
    """Pinned memory for copies to the device that do not wait."""
    return torch.empty(size, dtype=torch.int64, device="cpu", pin_memory=True)


@functools.lru_cache(4096)
def _layout(count: int) -> tuple[int, int]:
    """The row length of a tensor, and the number of programs that read its rows."""
    length = row_length(count)
    return length, -(-count // (length * _ROWS))


@functools.cache
def _constants(dtype: torch.dtype, aligned: bool) -> tuple[Any, ...]:
    return *TYPES[dtype], aligned, PLAIN, BUCKETS, ROW, _ROWS
