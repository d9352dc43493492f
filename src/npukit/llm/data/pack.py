"""Assign rows to packs: first-fit decreasing within windows of rows in random order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
WINDOW = 16384  # rows; large enough that the half-empty last pack of each window does not matter


@dataclass(frozen=True)
class Packs:
    """Pack number i consists of the rows `rows[starts[i] : starts[i + 1]]`."""

    rows: Numbers
    starts: Numbers

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> Numbers:
        return self.rows[self.starts[number] : self.starts[number + 1]]


def pack(lengths: Numbers, pack_length: int, seed: int) -> Packs:
    """Assign every row to exactly one pack of at most `pack_length` tokens. The same seed gives the same result.

    >>> packs = pack(np.array([3, 1, 2, 2]), 4, seed=0)
    >>> sorted(sorted(packs[number].tolist()) for number in range(len(packs)))
    [[0, 1], [2, 3]]
    """
    if len(lengths) and int(lengths.max()) > pack_length:
        raise ValueError(f"a row of {lengths.max()} tokens does not fit into a pack of {pack_length}")
    random = np.random.default_rng(seed)
    order = random.permutation(len(lengths))
    windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]
    packs = [packed for window in windows for packed in _pack_window(window, lengths[window], pack_length, random)]
    starts = np.cumsum([0, *map(len, packs)], dtype=np.int64)
    return Packs(np.concatenate(packs) if packs else order, starts)


def _pack_window(rows: Numbers, lengths: Numbers, capacity: int, random: np.random.Generator) -> list[Numbers]:
    """Fill one pack after another, always with the longest row that still fits.

    Rows of the same length are interchangeable, so it suffices to count the remaining ones of each length. `below`
    leads from an exhausted length to the next shorter one, with path compression.
    """
    by_length = np.argsort(lengths, kind="stable")
    sizes, begins = np.unique(lengths[by_length], return_index=True)
    size: list[int] = sizes.tolist()
    begin: list[int] = begins.tolist()
    end = [*begin[1:], len(rows)]
    below = list(range(len(size)))
    longest = (np.searchsorted(sizes, np.arange(capacity + 1), side="right") - 1).tolist()

    def at_most(free: int) -> int:
        at = longest[free]
        path = []
        while at >= 0 and end[at] == begin[at]:
            path.append(at)
            at = below[at] if below[at] != at else at - 1
        for used_up in path:
            below[used_up] = at
        return int(at)

    packs, left = [], len(rows)
    while left:
        taken: list[Numbers] = []
        free = capacity
        while (at := at_most(free)) >= 0:
            count = min(end[at] - begin[at], free // size[at])
            taken.append(by_length[end[at] - count : end[at]])
            end[at] -= count
            free -= count * size[at]
            left -= count
        packs.append(rows[np.concatenate(taken)])
    return [packs[number] for number in random.permutation(len(packs))]
