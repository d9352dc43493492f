"""How long does a step of GRPO take, by phase? npukit's trainer and engine on the same weights, on one device.

    python -m benchmarks grpo_speed --shape 1.5b --prompts 64 --answers 8 --length 512 --device cuda
    python -m benchmarks grpo_speed --shape small --prompts 2 --answers 2 --length 8 --device cpu

A model of that shape with random weights, LoRA of rank 16, answers that all have the given length (nothing ends them
before), and a reward that costs nothing, so that sampling and learning are what is measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.speed.serve import SHAPES
from benchmarks.speed.serve_http import save
from benchmarks.tiny_server import make_tokenizer

REWARDS = """
def ends_evenly(prompts, completions, **columns):
    return [float(len(str(completion)) % 2) for completion in completions]
"""
STEPS, WARM = 4, 2


def main() -> None:
    """Train for a few steps, and print the phases of the last ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--prompts", type=int, default=64, help="in a step")
    parser.add_argument("--answers", type=int, default=8, help="to each prompt")
    parser.add_argument("--length", type=int, default=512, help="tokens of an answer")
    parser.add_argument("--batch", type=int, default=16, help="answers that are learned from at once")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(arguments.shape, folder / "model")
        make_tokenizer().save_pretrained(folder / "model")  # one for text, with a chat template
        (folder / "rewards.py").write_text(REWARDS)
        rows = [{"prompt": f"What is {number} times {number + 1}?"} for number in range(arguments.prompts)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run(_command(folder, arguments), check=True)
        lines = [json.loads(line) for line in (folder / "output" / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "time/generation" in line][WARM:]
    _show(steps, arguments.prompts * arguments.answers)


def _command(folder: Path, arguments: argparse.Namespace) -> list[str]:
    answers = arguments.prompts * arguments.answers
    batch = min(arguments.batch, answers)
    options = {
        "task": "grpo",
        "model.path": folder / "model",
        "tuning.method": "lora",
        "tuning.rank": 16,
        "data.train": folder / "rows.jsonl",
        "rewards.plugins": folder / "rewards.py",
        "grpo.num_generations": arguments.answers,
        "grpo.max_completion_length": arguments.length,
        "training.output": folder / "output",
        "training.batch_size": batch,
        "training.accumulation": answers // batch,
        "training.max_steps": STEPS,
        "training.log_every": 1,
        "training.plot": "false",
    }
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "npukit", "train", *words, "--device", arguments.device]


def _show(steps: list[dict[str, float]], answers: int) -> None:
    """The mean of the phases, and the answers' tokens a second in each."""
    means = {name: sum(step[name] or 0.0 for step in steps) / len(steps) for name in steps[0]}
    tokens = answers * means["completions/mean_length"]
    for name, value in sorted(means.items()):
        print(f"{name}: {value:.4g}")
    print(f"{tokens:,.0f} tokens a step; sampling {tokens / means['time/sampling']:,.0f} tokens/s")


if __name__ == "__main__":
    main()
