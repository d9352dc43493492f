"""Compare the losses of preference training with TRL's, step by step: same model, rows, order and options, fp32, CPU.

    python benchmarks/preferences.py [--steps 30]

Run it where TRL is installed too (pip install trl), in an environment of its own. TRL is given npukit's token ids, so
that what is compared is the loss, the reference and the optimizer. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from npukit.llm.config.options import Config
from npukit.llm.data.prepare import prepare
from npukit.llm.finetune.preference import Pairs
from npukit.llm.finetune.train import train

ROOT = Path(__file__).parents[1]
WORDS = ["the", "sky", "is", "blue", "because", "light", "comes", "through", "air", "and", "two", "birds", "sing"]
BATCH, RATE = 2, 1e-4


def rows(count: int) -> list[dict[str, str]]:
    pick = random.Random(0)
    texts = [" ".join(pick.choices(WORDS, k=pick.randint(2, 20))) for _ in range(3 * count)]
    return [
        {"query": texts[at], "response": texts[at + 1], "rejected_response": texts[at + 2]}
        for at in range(0, 3 * count, 3)
    ]


def ours(config: Config) -> list[float]:
    train(config)
    log = [json.loads(line) for line in (config.training.output / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in log if "loss" in entry]


class InOrder(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer on rows that are tokens already, in their order."""

    def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return dataset

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def theirs(config: Config, steps: int, folder: Path) -> list[float]:
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    pairs = Pairs(prepare(config.data, "dpo", tokenizer, config.training.seed).train, is_kto=False)  # type: ignore[arg-type]
    columns: dict[str, list[Any]] = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
    for number in range(len(pairs)):
        chosen, rejected = pairs[number]["rows"]
        begin = int((chosen["labels"] >= 0).argmax())
        columns["prompt_ids"].append(chosen["input_ids"][:begin].tolist())
        columns["chosen_ids"].append(chosen["input_ids"][chosen["labels"] >= 0].tolist())
        columns["rejected_ids"].append(rejected["input_ids"][rejected["labels"] >= 0].tolist())
    options = DPOConfig(
        output_dir=str(folder),
        beta=config.preference.beta,
        loss_type=[config.preference.loss],
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=config.training.seed,
    )
    model = AutoModelForCausalLM.from_pretrained(config.model.path)
    trainer = InOrder(model, args=options, train_dataset=Dataset.from_dict(columns), processing_class=tokenizer)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make = [sys.executable, str(ROOT / "examples" / "finetune" / "make.py"), name]
        subprocess.run(make, check=True, capture_output=True)
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(BATCH * steps)))
        for loss in ("sigmoid", "hinge", "ipo"):
            config = Config.model_validate(
                {
                    "task": "dpo",
                    "model": {"path": str(folder / "model")},
                    "tuning": {"method": "full"},
                    "data": {"train": str(folder / "pairs.jsonl"), "cache": False, "packing": False, "cutoff": 512},
                    "preference": {"loss": loss},
                    "training": {"output": folder / loss, "max_steps": steps, "batch_size": BATCH, "log_every": 1}
                    | {"learning_rate": RATE, "schedule": "constant", "precision": "fp32", "shuffle": False}
                    | {"save_every": None, "plot": False, "workers": 0},
                }
            )
            found, expected = ours(config), theirs(config, steps, folder / f"trl-{loss}")
            worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
            print(f"{loss}: {steps} steps, largest difference of a loss {worst:.1e} ({found[0]:.4f} → {found[-1]:.4f})")


if __name__ == "__main__":
    main()
