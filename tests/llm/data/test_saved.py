"""Data sets that datasets' save_to_disk wrote: rows, or tokens that another tool made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.data.prepare import prepare
from npukit.llm.tasks.task import named


def prepared(place: Path, tokenizer: Any, task: str = "sft", **options: Any) -> Any:
    data = DataOptions(train=[str(place)], template="chatml", packing=False, cache=False, **options)
    return prepare(data, named(task), tokenizer, 0).train


def test_rows_are_read_as_from_any_file(tmp_path: Path, tiny_tokenizer: Any) -> None:
    rows = [{"query": f"q{number}", "response": "a", "lengths": [3]} for number in range(5)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved", num_shards=2)
    assert len(prepared(tmp_path / "saved", tiny_tokenizer)) == 5


def test_tokens_are_taken_as_they_are(tmp_path: Path, tiny_tokenizer: Any) -> None:
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, {"input_ids": [1, 2], "labels": [-100, 9]}]
    saved = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    saved.save_to_disk(tmp_path / "saved")
    tokenised = prepared(tmp_path / "saved", tiny_tokenizer)
    assert len(tokenised) == 1  # the other has a label that is not its token
    assert tokenised[0]["input_ids"].tolist() == [5, 6, 7, 8] and tokenised[0]["labels"].tolist() == [-100, -100, 7, 8]


def test_tokens_of_documents_to_rank(tmp_path: Path, tiny_tokenizer: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"input_ids": [[5, 6], [7]], "labels": [1, 0]}) + "\n")
    assert prepared(file, tiny_tokenizer, "rerank", tokens="ms_swift").lengths().tolist() == [2 + 1 + 1 + 1 + 8]


def test_a_broken_folder_is_named(tmp_path: Path, tiny_tokenizer: Any) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(NpukitError, match=r"state\.json is broken"):
        prepared(tmp_path / "saved", tiny_tokenizer)
