"""The rows that npukit draws beside those that LLaMA-Factory and ms-swift draw: samples, and validation.

ms-swift's own function is called; LLaMA-Factory's few lines are written out here around the same functions of numpy and
datasets. Tables, samples, shares and seeds are random.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets
from swift.dataset.dataset_meta import BaseDatasetLoader

from npukit.llm.data.drawn import as_llama_factory, as_ms_swift

Rows = list[tuple[int, int]]  # number of the table, number of the row


def swift_draws(sizes: list[int], samples: list[int | None], share: float, seed: int) -> tuple[Rows, Rows]:
    random = np.random.RandomState(seed)
    train, apart = [], []
    for table, (size, sample) in enumerate(zip(sizes, samples, strict=True)):
        rows = Dataset.from_dict({"row": [(table, number) for number in range(size)]})
        options = {"dataset_sample": sample, "split_dataset_ratio": share, "random_state": random}
        used, held_out = BaseDatasetLoader.post_process(rows, **options)
        train += _rows(used)
        apart += _rows(held_out)
    return sorted(train), sorted(apart)


def factory_draws(
    sizes: list[int], samples: list[int | None], most: int | None, share: float, seed: int
) -> tuple[Rows, Rows]:
    np.random.seed(seed)
    tables = []
    for table, (size, sample) in enumerate(zip(sizes, samples, strict=True)):
        rows = Dataset.from_dict({"row": [(table, number) for number in range(size)]})
        if sample is not None:
            numbers = np.random.permutation(size)[:sample]
            if len(numbers) < sample:
                numbers = np.concatenate([numbers, np.random.choice(size, sample - len(numbers))])
            rows = rows.select(numbers)
        tables.append(rows if most is None else rows.select(range(min(most, len(rows)))))
    parts = concatenate_datasets(tables).train_test_split(int(share) if share > 1 else share, seed=seed)
    return sorted(_rows(parts["train"])), sorted(_rows(parts["test"]))


def _rows(rows: Any) -> Rows:
    return [] if rows is None else [tuple(row) for row in rows["row"]]


def flat(drawn: Any) -> tuple[Rows, Rows]:
    train, apart = (sorted((table, int(row)) for table, rows in enumerate(part) for row in rows) for part in drawn)
    return train, apart


def show(cases: int) -> None:
    """Compare, and print in how many cases the rows are the same."""
    pick = np.random.RandomState(0)
    alike = {"ms-swift": 0, "LLaMA-Factory": 0}
    for seed in range(cases):
        sizes = [int(size) for size in pick.randint(5, 60, pick.randint(1, 4))]
        samples = [None if pick.rand() < 0.4 else int(pick.randint(3, 150)) for _ in sizes]
        most = None if pick.rand() < 0.5 else int(pick.randint(2, 40))
        share = float(pick.choice([0.01, 0.1, 0.3]))
        alike["ms-swift"] += swift_draws(sizes, samples, share, seed) == flat(as_ms_swift(sizes, samples, share, seed))
        theirs = factory_draws(sizes, samples, most, share, seed)
        alike["LLaMA-Factory"] += theirs == flat(as_llama_factory(sizes, samples, most, share, seed))
    for tool, count in alike.items():
        print(f"{tool}: the same rows to train on and to evaluate on in {count} of {cases} cases")
