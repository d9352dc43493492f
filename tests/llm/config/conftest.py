"""Where a user of `npukit train` stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npukit.llm.config.options import Config

ROW = {"instruction": "What is one plus one?", "output": "Two."}


SHAPE = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 400,
    "max_position_embeddings": 4096,
}


def make_model(folder: Path, shape: dict[str, Any]) -> None:
    """A folder with all files of a model, of which only config.json says something."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, data by name and by file, a folder that is no model, a DeepSpeed file that is none."""
    make_model(tmp_path / "models" / "tiny", SHAPE)
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "ds.json").write_text("{stage: 2}")
    (tmp_path / "data").mkdir()
    names = ("identity", "alpaca_en_demo")
    for name in names:
        (tmp_path / "data" / f"{name}.json").write_text(json.dumps([ROW]))
    info = {name: {"file_name": f"{name}.json"} for name in names}
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps(info))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def assert_has() -> Callable[[Config, dict[str, object]], None]:
    """`assert_has(config, {"training.epochs": 3})`; a number in a key is a place in a list."""

    def check(config: Config, expected: dict[str, object]) -> None:
        for key, value in expected.items():
            actual: Any = config
            for part in key.split("."):
                actual = actual[int(part)] if isinstance(actual, tuple) else getattr(actual, part)
            assert (str(actual) if isinstance(actual, Path) else actual) == value, key

    return check
