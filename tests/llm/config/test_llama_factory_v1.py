"""LLaMA-Factory's v1 format, as its examples have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.llm.config.raw_config import Mistakes
from npukit.llm.reading.read import Reading, read

LORA = """
model: models/tiny
model_class: llm
peft_config:
  name: lora
  r: 16
  lora_alpha: 32
  target_modules: all
kernel_config:
  name: auto
quant_config: null
dist_config:
  name: fsdp2
  dcp_path: null
train_dataset: sets.yaml
output_dir: ./outputs/test_lora
micro_batch_size: 2
max_steps: 10
sample_backend: hf
"""
SETS = "first:\n  path: rows.jsonl\n  source: local\n  converter: alpaca\n  size: 5\n"


def v1(text: str = LORA, sets: str = SETS, ranks: int = 1) -> Reading:
    Path("x.yaml").write_text(text)
    Path("sets.yaml").write_text(sets)
    return read(Path("x.yaml"), [], {}, ranks=ranks)


def test_a_whole_file_of_v1() -> None:
    reading = v1()
    assert reading.dialect == "LLaMA-Factory v1"
    assert reading.config.model_dump(mode="json", exclude_defaults=True) == {
        "model": {"path": "models/tiny"},
        "tuning": {"rank": 16, "alpha": 32.0, "dropout": 0.05},
        "data": {"train": [{"path": "rows.jsonl#5", "format": "alpaca"}], "packing": False},
        "training": {
            "output": "outputs/test_lora",
            "epochs": 3.0,
            "max_steps": 10,
            "batch_size": 2,
            "weight_decay": 0.01,
            "schedule": "constant",
            "precision": "bf16",
            "parallel": "fsdp2",
            "activation_checkpointing": True,
            "log_every": 1,
            "save_every": None,
            "save_total_limit": None,
            "resume": "never",
        },
    }


def test_a_group_that_is_missing_is_not_asked_for() -> None:
    config = v1("model: models/tiny\ntrain_dataset: rows.jsonl\nglobal_batch_size: 8\nbf16: false\n", ranks=2).config
    assert (config.tuning.method, config.training.parallel, config.training.accumulation) == ("full", "ddp", 4)
    assert config.training.precision == "fp32"


@pytest.mark.parametrize(("name", "ours"), [("qwen3_nothink", "qwen3_nothink"), ("chatml", "chatml"), ("qwen3", None)])
def test_templates_of_v1_0_9_5(name: str, ours: str | None) -> None:
    reading = v1(f"template: {name}\n{LORA}")
    assert reading.dialect == "LLaMA-Factory v1" and reading.config.data.template == ours


def test_pairs_are_preferences() -> None:
    sets = "pairs: {path: rows.jsonl, source: local, converter: pair}"
    assert read_task(LORA, sets) == "dpo"
    assert read_task(LORA.replace("model_class: llm", "model_class: cls"), sets) == "rm"
    assert read_task(LORA, SETS) == "sft"


def read_task(text: str, sets: str) -> str:
    Path("x.yaml").write_text(text)
    Path("sets.yaml").write_text(sets)
    return read(Path("x.yaml"), [], {}, files=False).config.task


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("name: fsdp2", "name: fsdpturbo", "dist_config.name"),
        ("  r: 16", "  rr: 16", "peft_config.rr"),
        ("peft_config:\n  name: lora\n  r: 16", "peft_config: lora\nseed: 1\nlogging_steps: 1", "peft_config"),
        ("model_class: llm", "template: alpaca", "template"),
        ("dcp_path: null", "dcp_path: x", "dist_config.dcp_path"),
        ("sets.yaml", "nothing.yaml", "train_dataset"),
        ("micro_batch_size: 2", "global_batch_size: 3\nmicro_batch_size: 2", "global_batch_size"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, named: str) -> None:
    with pytest.raises(Mistakes) as raised:
        v1(LORA.replace(old, new).replace("  lora_alpha: 32\n  target_modules: all\n", ""))
    mistake = raised.value.mistakes[0]
    assert named in mistake.text and mistake.place.source == "x.yaml"
