"""Streams: every row once an epoch, an order that is known from the seed, nothing prepared before."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.data import stream
from npukit.llm.data.prepare import Prepared, prepare
from npukit.llm.tasks.task import named


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stream, "WINDOW", 16)
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "cache"))


def write(file: Path, name: str, count: int) -> dict[str, Any]:
    rows = [{"prompt": f"{name}?", "completion": f"{name}{number}"} for number in range(count)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return {"path": str(file)}


def streamed(tokenizer: Any, *train: dict[str, Any], **options: Any) -> Prepared:
    data = DataOptions.model_validate({"train": train, "streaming": True, "packing": False, **options})
    return prepare(data, named("sft"), tokenizer, seed=3)


def answers(tokenizer: Any, rows: Any) -> list[str]:
    """The answers in all rows, packed or not."""
    counted = [tokenizer.decode([label for label in row["labels"] if label >= 0]) for row in rows]
    return [answer for row in counted for answer in row.split("<|im_end|>") if answer]


def test_every_row_comes_once_in_an_order_of_the_epoch(tiny_tokenizer: Any, tmp_path: Path) -> None:
    rows = streamed(tiny_tokenizer, write(tmp_path / "a.jsonl", "a", 50)).train
    first = answers(tiny_tokenizer, rows)
    assert sorted(first) == sorted(f"a{number}" for number in range(50)) and first == answers(tiny_tokenizer, rows)
    rows.set_epoch(1)
    second = answers(tiny_tokenizer, rows)
    assert second != first and sorted(second) == sorted(first)


def test_packed_streams_hold_the_same_rows(tiny_tokenizer: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "a", 50)
    packed = list(streamed(tiny_tokenizer, source, packing=True, cutoff=64, pack_length=256).train)
    assert len(packed) < 20 and all(sum(row["lengths"]) == 256 for row in packed)
    assert sorted(answers(tiny_tokenizer, packed)) == sorted(f"a{number}" for number in range(50))


def test_tables_are_mixed_by_weight(tiny_tokenizer: Any, tmp_path: Path) -> None:
    many = write(tmp_path / "a.jsonl", "a", 400) | {"weight": 3}
    few = write(tmp_path / "b.jsonl", "b", 400) | {"weight": 1}
    rows = streamed(tiny_tokenizer, many, few).train
    beginning = answers(tiny_tokenizer, itertools.islice(rows, 320))
    assert 0.68 < sum(answer.startswith("a") for answer in beginning) / 320 < 0.82


def test_validation_is_a_number_of_rows_that_training_skips(tiny_tokenizer: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "a", 20)
    result = streamed(tiny_tokenizer, source, validation=4)
    held_out = answers(tiny_tokenizer, result.validation)
    assert held_out == ["a0", "a1", "a2", "a3"]
    assert sorted(answers(tiny_tokenizer, result.train)) == sorted(f"a{number}" for number in range(4, 20))
    with pytest.raises(NpukitError, match="as a number of rows"):
        streamed(tiny_tokenizer, source, validation=0.1)


def test_the_engine_goes_on_where_it_stopped(tiny_tokenizer: Any, tmp_path: Path) -> None:
    import torch

    from npukit.llm.data.collate import Collator, weight
    from npukit.train.data import Data, Position, Split

    rows = streamed(tiny_tokenizer, write(tmp_path / "a.jsonl", "a", 50)).train
    collate = Collator(joined=False, pad_id=0)
    data = Data(rows, Split(2, 1, 0, 1), torch.device("cpu"), collate=collate, weight=weight, seed=1, epochs=2)
    whole = [batches[0].content["input_ids"].tolist() for batches in data.steps()]
    later = [batches[0].content["input_ids"].tolist() for batches in data.steps(Position(1, 10))]
    assert len(whole) == 50 and later == whole[35:]
