"""A task that can be learnt in a few seconds: answers are to be made of the tokens of a quarter of the vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.seeing import pictures, seeing_models, seeing_tokenizer

from npukit.llm.config.options import Config

__all__ = ["counting", "log_of", "pictures", "seeing_models", "seeing_tokenizer"]
REWARDS = """
def low(completion_ids, completions, **kwargs):
    return [sum(token < 100 for token in ids) / len(ids) for ids in completion_ids]
"""


@pytest.fixture
def counting(tiny_qwen2: Path, tmp_path: Path) -> Callable[..., Config]:
    """`counting(grpo={...}, training={...})`: a configuration of this task."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"messages": [{"role": "user", "content": f"Say {number}."}], "answer": number} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def made(**more: dict[str, Any]) -> Config:
        parts: dict[str, dict[str, Any]] = {
            "model": {"path": str(tiny_qwen2)},
            "tuning": {"method": "full"},
            "data": {"train": [str(tmp_path / "rows.jsonl")], "cutoff": 64, "cache": False, "preprocessing_workers": 1},
            "grpo": {"num_generations": 8, "max_completion_length": 8},
            "rewards": {"plugins": [str(tmp_path / "rewards.py")]},
            "training": {"batch_size": 32, "max_steps": 2, "learning_rate": 1e-2, "schedule": "constant", "warmup": 0}
            | {"output": str(tmp_path / "run"), "save_every": None, "log_every": 1, "plot": False},
        }
        for name, values in more.items():
            parts.setdefault(name, {}).update(values)
        return Config(task="grpo", **parts)

    return made


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The steps that a run logged."""
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if "loss" in entry]
