"""Checkpoints of other tools' quantisation are read as the weights that they stand for.

npukit's reading was also compared once with what compressed-tensors 0.20 and bitsandbytes 0.50 write: bit for bit.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.quantized import KINDS, quantized_copy
from transformers import AutoModelForCausalLM

from npukit.errors import NpukitError
from npukit.export.merge import merge
from npukit.inference.loading import load
from npukit.llm.config.options import ModelOptions
from npukit.llm.config.use import Use
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.loading import load_model


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_checkpoint_is_the_model_of_its_weights(kind: str, tiny_qwen2: Path, tmp_path: Path) -> None:
    exact = quantized_copy(tiny_qwen2, tmp_path / "small", kind)
    weights = open_checkpoint(tmp_path / "small")
    assert {name: entry.shape for name, entry in weights.entries.items()} == {
        name: tuple(tensor.shape) for name, tensor in exact.items()
    }
    torch.testing.assert_close({name: weights.read(name).float() for name in exact}, exact, rtol=1e-6, atol=1e-6)

    expected = AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    expected.load_state_dict(exact, strict=False)
    ids = torch.arange(40)[None]
    served = load(Use(model=ModelOptions(path=str(tmp_path / "small"))), torch.device("cpu")).model
    torch.testing.assert_close(served(ids).logits, expected(ids).logits)


def test_it_is_trained_and_exported_like_any_other(tiny_qwen2: Path, tmp_path: Path) -> None:
    exact = quantized_copy(tiny_qwen2, tmp_path / "small", "awq")
    trained = load_model(ModelOptions(path=str(tmp_path / "small")), str(tmp_path / "small"), torch.float32, None)
    assert trained.name_or_path == trained.config.name_or_path == str(tmp_path / "small")
    torch.testing.assert_close(trained.model.layers[1].mlp.up_proj.weight, exact["model.layers.1.mlp.up_proj.weight"])

    merge(tmp_path / "small", [], tmp_path / "whole", dtype="float32")
    assert "quantization_config" not in json.loads((tmp_path / "whole" / "config.json").read_text())
    torch.testing.assert_close(load_file(tmp_path / "whole" / "model.safetensors"), exact)


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "awq", "version": "gemv"},
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
    ],
)
def test_a_format_that_cannot_be_read_is_named(settings: dict[str, str], tiny_qwen2: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_qwen2, tmp_path / "small")
    config = json.loads((tiny_qwen2 / "config.json").read_text())
    (tmp_path / "small" / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    with pytest.raises(NpukitError, match=settings.get("version") or settings["format"]):
        open_checkpoint(tmp_path / "small")
