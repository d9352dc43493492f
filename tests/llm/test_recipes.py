"""The recipes in examples/ train, with a tiny GPT-2 in place of the hub's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.llm.finetune.train import train
from npukit.llm.reading.read import read

RECIPES = Path(__file__).parents[2] / "examples" / "gpt2"


@pytest.fixture
def gpt2(tiny_tokenizer: Any, tmp_path: Path) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt2"
    end = tiny_tokenizer.eos_token_id
    shape = GPT2Config(
        vocab_size=len(tiny_tokenizer), n_embd=32, n_layer=2, n_head=2, bos_token_id=end, eos_token_id=end
    )
    GPT2LMHeadModel(shape).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("recipe", ["pretrain.yaml", "finetune.yaml"])
def test_a_recipe_trains(recipe: str, gpt2: Path, tmp_path: Path) -> None:
    rows = [
        {"instruction": f"Say {number}.", "output": f"It is {number}.", "text": "to and fro " * 400}
        for number in range(40)
    ]
    data, output = tmp_path / "rows.jsonl", tmp_path / "out"
    data.write_text("".join(json.dumps({"text": row.pop("text")} if "pre" in recipe else row) + "\n" for row in rows))
    chosen = {
        "model.path": gpt2,
        "data.train": data,
        "training.output": output,
        "training.batch_size": 2,
        "training.max_steps": 3,
        "training.accumulation": 1,
        "training.warmup": 0,
        "training.learning_rate": 1e-2,
        "training.log_every": 1,
        "data.validation": 1,
    }
    if "pre" in recipe:
        (gpt2 / "model.safetensors").unlink()  # its weights are not read
    torch.manual_seed(1)
    train(read(RECIPES / recipe, [f"{name}={value}" for name, value in chosen.items()], {}).config)
    losses = [json.loads(line).get("loss") for line in (output / "log.jsonl").read_text().splitlines()]
    losses = [loss for loss in losses if loss is not None]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert (output / "model.safetensors").exists()
