"""Does GRPO make answers of what is rewarded, on one device and on several?

    python -m benchmarks grpo_counting [--device cpu|sim] [--devices 2] [--steps 30]

A model of two layers with random weights, and as reward the share of tokens from the first quarter of its vocabulary,
which is about a quarter by chance.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from benchmarks.tiny_server import make_model

REWARD = """
def low(completion_ids, completions, **columns):
    return [sum(token < 100 for token in ids) / len(ids) for ids in completion_ids]
"""
ANSWERS = 32  # in a step


def main(
    device: Annotated[str, "cpu or sim"] = "cpu",
    devices: Annotated[int, "which share the answers"] = 2,
    steps: Annotated[int, "of GRPO"] = 30,
) -> None:
    """Train, and print the reward of the first and the last steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        (folder / "reward.py").write_text(REWARD)
        rows = [{"messages": [{"role": "user", "content": f"Say {number}."}]} for number in range(8)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run(_command(folder, device, devices, steps), check=True, stdout=sys.stderr)
        lines = (folder / "output" / "log.jsonl").read_text().splitlines()
    rewards = [entry["reward"] for entry in map(json.loads, lines) if "reward" in entry]
    apart = max(entry.get("sampling/logp_difference", 0) for entry in map(json.loads, lines))
    print(
        f"{device}, {devices}: reward {rewards[0]:.3f} in step 1, {rewards[-1]:.3f} in step {steps}, "
        f"above 0.9 from step {next((n for n, reward in enumerate(rewards, 1) if reward > 0.9), 'none')}; "
        f"sampler and learner at most {apart:.1e} apart in the mean of a step"
    )


def _command(folder: Path, device: str, devices: int, steps: int) -> list[str]:
    options = {
        "task": "grpo",
        "model.path": folder / "model",
        "tuning.method": "full",
        "data.train": folder / "rows.jsonl",
        "data.cutoff": 64,
        "rewards.plugins": folder / "reward.py",
        "grpo.num_generations": 8,
        "grpo.max_completion_length": 8,
        "training.output": folder / "output",
        "training.batch_size": ANSWERS // devices,
        "training.max_steps": steps,
        "training.learning_rate": 1e-2,
        "training.schedule": "constant",
        "training.warmup": 0,
        "training.precision": "fp32",
        "training.log_every": 1,
        "training.plot": "false",
    }
    words = [f"{key}={value}" for key, value in options.items()]
    return [sys.executable, "-m", "npukit", "train", *words, "--device", device, "--devices", str(devices)]
