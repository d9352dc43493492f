"""The validation rows of a run are found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npukit.llm.config.options import DataOptions
from npukit.llm.data.held_out import held_out
from npukit.llm.data.prepare import prepare
from npukit.llm.tasks.task import named


def test_the_rows_are_those_that_training_evaluated_on(tiny_tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"instruction": f"What is {number}?", "output": f"It is {number}."} for number in range(40)]
    rows[3]["output"] = ""  # cannot be used, and counts for nobody
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataOptions(train=[str(file)], validation=0.2, packing=False, cache=False, preprocessing_workers=1)
    prepared = prepare(data, named("sft"), tiny_tokenizer, seed=7)
    assert prepared.validation is not None
    evaluated = [
        tiny_tokenizer.decode(prepared.validation[number]["input_ids"]) for number in range(len(prepared.validation))
    ]
    conversations = held_out(data, 7, tiny_tokenizer)
    assert len(conversations) == len(evaluated) == 8
    assert all(row[-1]["content"] in text for row, text in zip(conversations, evaluated, strict=True))
    assert held_out(data, 8, tiny_tokenizer) != conversations


def test_rows_that_were_named_are_all_of_them(tiny_tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"instruction": "Hi", "output": "Ho"}) + "\n")
    data = DataOptions(train=["nowhere"], validation=[str(file)], preprocessing_workers=1)
    assert [row[-1]["content"] for row in held_out(data, 1, tiny_tokenizer)] == ["Ho"]
