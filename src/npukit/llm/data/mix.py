"""Select rows from tables: set validation rows apart, then mix the tables by weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npukit.errors import NpukitError
from npukit.llm.data.pack import Numbers
from npukit.report.report import counted


def split(sizes: Sequence[int], validation: float, seed: int) -> tuple[list[Numbers], list[Numbers]]:
    """The rows of each table to train on and to evaluate on. `validation` is a share below 1, or a number of rows.

    Each table contributes its share, chosen at random by the seed; the remaining rows keep their order.
    """
    total = sum(sizes)
    apart = round(total * validation) if validation < 1 else int(validation)
    if 0 < validation < 1:
        apart = max(apart, 1)
    if apart >= total:
        raise NpukitError(f"data.validation takes {apart:,} of {counted(total, 'row')}, which leaves none to train on.")
    ends = np.round(np.cumsum([0, *sizes]) * (apart / total)).astype(np.int64)
    random = np.random.default_rng([seed, 1])
    train, held_out = [], []
    for size, count in zip(sizes, np.diff(ends), strict=True):
        order = random.permutation(size)
        held_out.append(np.sort(order[:count]))
        train.append(np.sort(order[count:]))
    return train, held_out


def mix(rows: Sequence[Numbers], weights: Sequence[float | None], seed: int) -> list[Numbers]:
    """The rows that each table contributes to an epoch, whose length is that of all tables together.

    Without weights each table contributes all its rows. With weights (1 for a table without one) each contributes its
    share: a random selection if it is too large; if it is too small, some rows are repeated.
    """
    if not any(weights):
        return list(rows)
    total = sum(map(len, rows))
    shares = np.array([weight or 1.0 for weight in weights])
    ends = np.round(np.cumsum([0.0, *shares]) / shares.sum() * total).astype(np.int64)
    random = np.random.default_rng([seed, 2])
    mixed = []
    for numbers, count in zip(rows, np.diff(ends), strict=True):
        whole, rest = divmod(int(count), len(numbers)) if len(numbers) else (0, 0)
        mixed.append(np.sort(np.concatenate([*[numbers] * whole, random.permutation(numbers)[:rest]])))
    return mixed
