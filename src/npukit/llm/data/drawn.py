"""Choose the rows that LLaMA-Factory and ms-swift would train and evaluate on, with their own random draws.

Both shuffle a table before they take some of its rows: LLaMA-Factory for `num_samples` of dataset_info.json and for
`val_size`, ms-swift for `name#500` and `split_dataset_ratio`. Rows are numbered as in the files. Source: LLaMA-Factory
v0.9.5 (data/loader.py, data_utils.py), ms-swift v4.5.2 (dataset/dataset_meta.py); read 2026-11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.data.pack import Numbers
from npukit.llm.data.sources import Table
from npukit.report.report import counted

Drawn = tuple[list[Numbers], list[Numbers]]  # the rows of each table to train on, and those to evaluate on


def drawn(tables: Sequence[Table], data: DataOptions, seed: int) -> tuple[list[Table], list[Table]]:
    """The tables with the rows that the tool in data.tokens trains on, and those with the rows that it sets apart.

    >>> drawn([find_table(Source(path="alpaca.jsonl#500"), data)], data, seed=42)[0][0].keep
    """
    share = 0.0 if isinstance(data.validation, tuple) else data.validation
    if data.tokens == "npukit" or not (share or any(table.sampled for table in tables)):
        return list(tables), []
    sizes = [sum(1 for _ in table.records()) for table in tables]
    samples = [table.sampled for table in tables]
    if data.tokens == "llama_factory":
        train, apart = as_llama_factory(sizes, samples, data.max_rows, share, seed)
    else:
        train, apart = as_ms_swift(sizes, samples, share, seed)
    if not sum(map(len, train)):
        raise NpukitError(f"data.validation takes all of {counted(sum(sizes), 'row')}, which leaves none to train on.")
    return _keeping(tables, train), _keeping(tables, apart)


def _keeping(tables: Sequence[Table], rows: Sequence[Numbers]) -> list[Table]:
    pairs = zip(tables, rows, strict=True)
    return [replace(table, keep=tuple(sorted(keep.tolist())), limit=None) for table, keep in pairs if len(keep)]


def as_llama_factory(
    sizes: Sequence[int], samples: Sequence[int | None], most: int | None, share: float, seed: int
) -> Drawn:
    """Sample each table, keep the first `most` of its rows, and draw validation rows from all tables together."""
    random = np.random.RandomState(seed)
    picked = [_sampled_more(random, size, count)[:most] for size, count in zip(sizes, samples, strict=True)]
    ends = np.cumsum([len(rows) for rows in picked])
    count = math.ceil(ends[-1] * share) if share < 1 else min(int(share), ends[-1])
    order = np.random.default_rng(seed).permutation(ends[-1])
    train, apart = (np.split(np.sort(part), np.searchsorted(np.sort(part), ends)) for part in _cut(order, count))
    begins = [0, *ends[:-1].tolist()]
    parts = [
        [rows[numbers - begin] for rows, numbers, begin in zip(picked, part, begins, strict=False)]
        for part in (train, apart)
    ]
    return parts[0], parts[1]


def _cut(order: Numbers, count: int) -> tuple[Numbers, Numbers]:
    return order[count:], order[:count]


def _sampled_more(random: np.random.RandomState, size: int, count: int | None) -> Numbers:
    if count is None:
        return np.arange(size)
    rows = random.permutation(size)[:count]
    return np.concatenate([rows, random.choice(size, count - len(rows))]) if count > len(rows) else rows


def as_ms_swift(sizes: Sequence[int], samples: Sequence[int | None], share: float, seed: int) -> Drawn:
    """Split every table, then sample what is left of it, all from one stream of random numbers."""
    random = np.random.RandomState(seed)
    train, apart = [], []
    for size, sample in zip(sizes, samples, strict=True):
        count = sample or size
        held_out = max(int(min(size, count) * share), 1) if share else 0
        order = np.arange(size)
        if held_out:
            order = np.random.default_rng(random.randint(0, np.iinfo(np.int32).max)).permutation(size)
        rest, held = _cut(order, held_out)
        train.append(rest[_sampled(random, len(rest), max(0, count - held_out))])
        apart.append(held)
    return train, apart


def _sampled(random: np.random.RandomState, size: int, count: int) -> Numbers:
    """All rows as many times as they fit into `count`, plus a random part of them."""
    whole, more = divmod(count, size) if size else (0, 0)
    rows = np.tile(np.arange(size), whole)
    return np.concatenate([rows, random.permutation(size)[:more]]) if more else rows
