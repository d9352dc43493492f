"""GRPO on two simulated NPUs: however they share the model, the same answers are sampled and learnt from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.forks import Forks

from npukit.llm.config.options import Config

SCRIPT = """
import sys
from npukit.llm.config.options import Config
from npukit.rl.rank import train
for config in sys.argv[1:]:
    train(Config.model_validate_json(config))
"""
REWARDS = """
def low(completion_ids, completions, **kwargs):
    return [sum(token < 100 for token in ids) / len(ids) for ids in completion_ids]
"""
WAYS = ("ddp", "fsdp2", "zero3")
NAMES = ("loss", "grad_norm", "reward", "kl", "entropy", "completions/mean_length")


def log_of(folder: Path) -> list[list[float]]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [[entry[name] for name in NAMES] for entry in lines if "loss" in entry]


def test_sharded_weights_give_what_whole_ones_give(forks: Forks, tiny_qwen2: Path, tmp_path: Path) -> None:
    """Two updates from each generation, and the distance to the initial weights."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"messages": [{"role": "user", "content": f"Say {number}."}]} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def made(parallel: str) -> str:
        parts: dict[str, dict[str, Any]] = {
            "model": {"path": str(tiny_qwen2)},
            "tuning": {"method": "lora"},
            "data": {"train": [str(tmp_path / "rows.jsonl")], "cutoff": 64, "cache": False, "preprocessing_workers": 1},
            "grpo": {"num_generations": 4, "max_completion_length": 4, "beta": 0.1, "num_iterations": 2},
            "rewards": {"plugins": [str(tmp_path / "rewards.py")]},
            "training": {"parallel": parallel, "precision": "fp32", "optimizer": "sgd", "learning_rate": 0.1}
            | {"batch_size": 4, "max_steps": 3, "schedule": "constant", "warmup": 0, "save_every": None, "workers": 0}
            | {"log_every": 1, "plot": False, "output": str(tmp_path / parallel)},
        }
        return Config(task="grpo", **parts).model_dump_json()

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    forks.run("npukit", "run", "--device", "sim", "--devices", 2, script, *map(made, WAYS), cwd=tmp_path)
    whole = log_of(tmp_path / "ddp")
    assert len(whole) == 3 and whole[-1][3] > 0  # the model has left where it began
    for parallel in WAYS[1:]:
        for first, second in zip(whole, log_of(tmp_path / parallel), strict=True):
            assert second == pytest.approx(first, rel=1e-3, abs=1e-5), parallel
