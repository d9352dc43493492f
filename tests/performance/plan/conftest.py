"""A folder to plan in: models of which only config.json is there, and a few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

TINY = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 400,
    "max_position_embeddings": 4096,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test."""
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"instruction": "What is one plus one?", "output": "Two."}) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path
