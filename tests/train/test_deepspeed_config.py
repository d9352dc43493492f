"""DeepSpeed's configuration from names and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.train.deepspeed_config import deepspeed_config
from npukit.train.options import TrainOptions

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_max_live_parameters": "auto"},
}


def config(file: Path, content: Any, hidden_size: int | None = 64, **options: Any) -> dict[str, Any]:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    chosen = TrainOptions(parallel=file, batch_size=2, accumulation=4, max_grad_norm=0.5, **options)
    return deepspeed_config(chosen, world_size=2, precision="bf16", hidden_size=hidden_size)


def test_a_file_is_filled_in(tmp_path: Path) -> None:
    settings = config(tmp_path / "ds.json", AUTO)
    assert settings["train_batch_size"] == 16 and settings["gradient_accumulation_steps"] == 4
    assert settings["gradient_clipping"] == 0.5
    assert settings["bf16"] == {"enabled": True} and settings["fp16"]["enabled"] is False
    assert settings["zero_optimization"] == {"stage": 3, "reduce_bucket_size": 4096}
    assert "optimizer" not in settings
    assert "auto" not in json.dumps(settings)
    assert config(tmp_path / "ds.json", AUTO, hidden_size=None)["zero_optimization"] == {"stage": 3}


@pytest.mark.parametrize(("name", "stage"), [("zero1", 1), ("zero2", 2), ("zero3", 3)])
def test_names(name: str, stage: int) -> None:
    options = TrainOptions.model_validate({"parallel": name, "offload": True})
    settings = deepspeed_config(options, world_size=1, precision="fp16", hidden_size=None)
    assert settings["zero_optimization"] == {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    assert settings["fp16"] == {"enabled": True, "initial_scale_power": 16}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({**AUTO, "train_micro_batch_size_per_gpu": 8}, "train_micro_batch_size_per_gpu 8, the training options 2"),
        ({**AUTO, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}, "take `optimizer` \\(lr\\) out"),
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
    ],
)
def test_what_contradicts_is_refused(tmp_path: Path, content: Any, sentence: str) -> None:
    with pytest.raises(NpukitError, match=sentence):
        config(tmp_path / "ds.json", content)


def test_no_file() -> None:
    with pytest.raises(NpukitError, match=r"nowhere.json .* ddp, fsdp2, zero1, zero2, zero3"):
        deepspeed_config(TrainOptions(parallel=Path("nowhere.json")), 1, "bf16", None)
