"""Reinforcement learning on an NPU: fused operators, graphs and half precision in sampler and learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npukit.llm.config.options import Config
from npukit.rl.rank import train

REWARDS = """
def low(completion_ids, completions, **kwargs):
    return [sum(token < 100 for token in ids) / len(ids) for ids in completion_ids]
"""


@pytest.mark.parametrize("keep", [True, False], ids=["kept cache", "released cache"])
def test_a_model_learns_what_is_rewarded(tiny_qwen2: Path, tmp_path: Path, keep: bool) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"messages": [{"role": "user", "content": f"Say {number}."}]} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts: dict[str, dict[str, Any]] = {
        "model": {"path": str(tiny_qwen2)},
        "tuning": {"method": "full" if keep else "lora"},
        "data": {"train": [str(tmp_path / "rows.jsonl")], "cutoff": 64, "cache": False, "preprocessing_workers": 1},
        "grpo": {"num_generations": 8, "max_completion_length": 8, "keep_cache": keep, "beta": 0.0 if keep else 0.001},
        "rewards": {"plugins": [str(tmp_path / "rewards.py")]},
        "training": {"batch_size": 32, "max_steps": 10 if keep else 3, "learning_rate": 1e-2, "schedule": "constant"}
        | {
            "output": str(tmp_path / "run"),
            "save_every": None,
            "log_every": 1,
            "plot": False,
            "warmup": 0,
            "workers": 0,
        },
    }
    train(Config(task="grpo", **parts))
    lines = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    log = [entry for entry in lines if "reward" in entry]
    assert all(entry["sampling/logp_difference"] < 0.05 for entry in log)  # in half precision, and never NaN
    assert log[0]["reward"] < 0.4 and (not keep or log[-1]["reward"] > 0.5)
