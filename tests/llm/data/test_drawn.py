"""Which rows LLaMA-Factory and ms-swift would take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.drawn import as_llama_factory, as_ms_swift, drawn
from npukit.llm.data.sources import find_table


def plain(rows: Any) -> list[list[int]]:
    return [sorted(row.tolist()) for row in rows]


def test_ms_swift_splits_each_table_and_then_samples_it() -> None:
    """Recorded from ms-swift v4.5.2: post_process of 6 rows (#4) and 8 rows, split_dataset_ratio 0.3, data_seed 42."""
    train, apart = as_ms_swift([6, 8], [4, None], 0.3, 42)
    assert plain(train) == [[0, 2, 4], [1, 2, 3, 4, 5, 6]]
    assert plain(apart) == [[5], [0, 7]]


def test_ms_swift_repeats_rows_where_more_are_asked_for_than_there_are() -> None:
    train, _ = as_ms_swift([3], [7], 0.0, 42)
    assert sorted(np.bincount(train[0]).tolist()) == [2, 2, 3]


def test_llama_factory_splits_all_tables_together() -> None:
    split = Dataset.from_dict({"row": list(range(20))}).train_test_split(0.25, seed=7)
    train, apart = as_llama_factory([12, 8], [None, None], None, 0.25, 7)
    for part, wanted in ((train, split["train"]), (apart, split["test"])):
        assert [*part[0].tolist(), *(part[1] + 12).tolist()] == sorted(wanted["row"])


def test_max_samples_are_the_first_rows_and_num_samples_are_drawn() -> None:
    assert plain(as_llama_factory([9], [None], 3, 0.0, 7)[0]) == [[0, 1, 2]]
    assert plain(as_llama_factory([9], [4], None, 0.0, 7)[0]) == [sorted(np.random.RandomState(7).permutation(9)[:4])]


def test_a_table_gives_the_rows_that_were_drawn(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"instruction": "n", "output": str(number)}) + "\n" for number in range(8)))
    for tokens, count in (("ms_swift", 4), ("npukit", 4)):
        data = DataOptions(train=f"{file}#4", tokens=tokens)
        tables, apart = drawn([find_table(Source(path=f"{file}#4"), data)], data, seed=42)
        rows = [record.value["output"] for record in tables[0].records()]
        assert not apart
        assert (len(rows) == count) == (tokens == "ms_swift")  # npukit's own limit counts usable rows, when it reads
    assert (tables[0].limit, tables[0].keep) == (4, None)
