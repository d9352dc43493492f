"""How long does a step of GRPO take, by phase? npukit's trainer and engine on the same weights, on one device.

    python -m benchmarks grpo_speed --shape 1.5b --prompts 64 --answers 8 --length 512 --device cuda
    python -m benchmarks grpo_speed --shape small --prompts 2 --answers 2 --length 8 --device cpu

A model of that shape with random weights, LoRA of rank 16, answers that all have the given length (nothing ends them
before), and a reward that costs nothing, so that sampling and learning are what is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from benchmarks.speed.serve import SHAPES
from benchmarks.speed.serve_http import save
from benchmarks.tiny_server import make_tokenizer

REWARDS = """
def ends_evenly(prompts, completions, **columns):
    return [float(len(str(completion)) % 2) for completion in completions]
"""
STEPS, WARM = 4, 2


def main(
    shape: Annotated[str, SHAPES] = "small",
    prompts: Annotated[int, "in a step"] = 64,
    answers: Annotated[int, "to each prompt"] = 8,
    length: Annotated[int, "tokens of an answer"] = 512,
    batch: Annotated[int, "answers that are learned from at once"] = 16,
    device: str = "cpu",
) -> None:
    """Train for a few steps, and print the phases of the last ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(shape, folder / "model")
        make_tokenizer().save_pretrained(folder / "model")  # one for text, with a chat template
        (folder / "rewards.py").write_text(REWARDS)
        rows = [{"prompt": f"What is {number} times {number + 1}?"} for number in range(prompts)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run(_command(folder, prompts, answers, length, batch, device), check=True)
        lines = [json.loads(line) for line in (folder / "output" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "time/generation" in line][WARM:]
    _show(steps, prompts * answers)


def _command(folder: Path, prompts: int, answers: int, length: int, batch: int, device: str) -> list[str]:
    batch = min(batch, prompts * answers)
    options = {
        "task": "grpo",
        "model.path": folder / "model",
        "tuning.method": "lora",
        "tuning.rank": 16,
        "data.train": folder / "rows.jsonl",
        "rewards.plugins": folder / "rewards.py",
        "grpo.num_generations": answers,
        "grpo.max_completion_length": length,
        "training.output": folder / "output",
        "training.batch_size": batch,
        "training.accumulation": prompts * answers // batch,
        "training.max_steps": STEPS,
        "training.log_every": 1,
        "training.plot": "false",
    }
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "npukit", "train", *words, "--device", device]


def _show(steps: list[dict[str, float]], answers: int) -> None:
    """The mean of the phases, and the answers' tokens a second in each."""
    means = {name: sum(step[name] or 0.0 for step in steps) / len(steps) for name in steps[0]}
    tokens = answers * means["completions/mean_length"]
    for name, value in sorted(means.items()):
        print(f"{name}: {value:.4g}")
    print(f"{tokens:,.0f} tokens a step; sampling {tokens / means['time/sampling']:,.0f} tokens/s")
