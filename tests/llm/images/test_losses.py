"""Training with images, beside transformers' own forward of one row at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.llm.config.options import Config
from npukit.llm.finetune.train import train

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
WORDS = ["a", "cat", "on", "the", "mat", "sees", "two", "quiet", "birds", "through", "blue", "air"]


@pytest.fixture(scope="session")
def rows(pictures: Path) -> Path:
    """Conversations with none, one or several pictures, in one or two turns."""
    pick = random.Random(0)

    def say(most: int) -> str:
        return " ".join(pick.choices(WORDS, k=pick.randint(1, most)))

    file = pictures / "rows.jsonl"
    with file.open("w") as lines:
        for number in range(12):
            names = pick.choices("abcde", k=number % 3)
            turns = [
                {"role": "user", "content": f"<image>{say(5)}" if names else say(9)},
                {"role": "assistant", "content": say(12)},
            ]
            for _ in names[1:]:
                turns += [
                    {"role": "user", "content": f"{say(3)} <image> {say(3)}"},
                    {"role": "assistant", "content": say(9)},
                ]
            lines.write(json.dumps({"messages": turns, "images": [f"{name}.png" for name in names]}) + "\n")
    return file


def config(model: Path, rows: Path, output: Path, **given: Any) -> Config:
    training = {"log_every": 1, "precision": "fp32", "shuffle": False, "save_every": None, "workers": 0}
    return Config.model_validate(
        {
            "model": {"path": str(model)},
            "tuning": {"method": "lora", **given.pop("tuning", {})},
            "data": {"train": [str(rows)], "media_dir": rows.parent, "cutoff": 512, **given.pop("data", {})},
            "training": {"output": output, "learning_rate": 1e-3, "epochs": 1, **training, **given},
        }
    )


def logged(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def of_transformers(config: Config) -> list[float]:
    """The loss of each row, by the model as it is, from ids that transformers' own parts made."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

    folder = config.model.path
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    losses = []
    for line in Path(config.data.train[0].path).read_text().splitlines():
        row = json.loads(line)
        images = [Image.open(config.data.media_dir / name) for name in row["images"]]
        seen = processor(images=images, return_tensors="pt") if images else {}
        labels, ids = [], []
        counts = iter((seen["image_grid_thw"].prod(1) // 4).tolist() if images else [])
        for number, turn in enumerate(row["messages"]):
            pieces = turn["content"].split("<image>")
            text = pieces[0]
            for piece in pieces[1:]:
                text += f"<|vision_start|>{'<|image_pad|>' * next(counts)}<|vision_end|>{piece}"
            is_answer = bool(number % 2)
            for part, counted in (
                (f"<|im_start|>{turn['role']}\n", False),
                (f"{text}<|im_end|>", is_answer),
                ("\n", False),
            ):
                tokens = tokenizer.encode(part, add_special_tokens=False)
                ids += tokens
                labels += tokens if counted else [-100] * len(tokens)
        batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels]), **seen}
        batch["mm_token_type_ids"] = (batch["input_ids"] == model.config.image_token_id).int()
        with torch.no_grad():
            losses.append(float(model(**batch).loss) * int((batch["labels"] != -100).sum()))
        losses[-1] = (losses[-1], int((batch["labels"] != -100).sum()))
    return losses


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packing", [False, True])
def test_losses_are_those_of_transformers_row_by_row(
    family: str, packing: bool, seeing_models: Callable[[str], Path], rows: Path, tmp_path: Path
) -> None:
    wanted = config(seeing_models(family), rows, tmp_path, batch_size=12, data={"packing": packing, "cache": False})
    if packing:
        wanted = wanted.model_copy(update={"training": wanted.training.model_copy(update={"batch_size": 64})})
    train(wanted)
    sums = of_transformers(wanted)
    mean = sum(loss for loss, _ in sums) / sum(count for _, count in sums)
    assert logged(tmp_path)[0] == pytest.approx(mean, abs=1e-5)
