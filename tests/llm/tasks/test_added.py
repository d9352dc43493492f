"""A task is one file: what its author wrote in added/scored.py is all that there is to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npukit.llm import tasks
from npukit.llm.config.explain import as_text
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.finetune.train import train
from npukit.llm.reading.read import read


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file in the folder of the tasks."""
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(Path(__file__).with_name("added"))])
    tasks.known.cache_clear()
    yield
    tasks.known.cache_clear()


def yaml_file(folder: Path, model: Path, **row: Any) -> Path:
    rows = [{"ask": f"What is {n}?", "say": "a number", "score": n / 8} | row for n in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "train.yaml"
    file.write_text(
        f"""task: scored
model: {{path: {model}}}
data: {{train: {folder / "rows.jsonl"}, template: chatml, cutoff: 64, cache: false, validation: 2}}
tuning: {{rank: 2}}
training: {{output: {folder / "out"}, max_steps: 2, batch_size: 3, eval_every: 1, plot: false}}
"""
    )
    return file


def test_a_task_of_ones_own_trains(added: None, tmp_path: Path, tiny_qwen2: Path) -> None:
    reading = read(yaml_file(tmp_path, tiny_qwen2), [], {})
    assert train(reading.config).steps == 2
    logged = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    scores = [line["eval_score"] for line in logged if "eval_score" in line]
    assert len(scores) == 2 and 0 <= scores[0] <= 1
    assert any(line.get("eval_loss", 0) > 0 for line in logged)
    assert "scored" in as_text(Config, "task")


def test_its_rows_are_looked_at_before_anything_is_loaded(added: None, tmp_path: Path, tiny_qwen2: Path) -> None:
    with pytest.raises(Mistakes) as wrong:
        read(yaml_file(tmp_path, tiny_qwen2, score=7), [], {})
    assert wrong.value.mistakes[0].place.line == 3


def test_without_the_file_there_is_no_such_task(tmp_path: Path, tiny_qwen2: Path) -> None:
    with pytest.raises(Mistakes) as wrong:
        read(yaml_file(tmp_path, tiny_qwen2), [], {}, files=False)
    assert wrong.value.mistakes[0].place.line == 1
