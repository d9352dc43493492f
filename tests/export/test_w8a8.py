"""int8 weights in the layout that vllm-ascend reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from npukit.export.w8a8 import quantise
from npukit.llm.models.quantized import to_8_bits


def test_rows_have_scales_of_their_own() -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5], [100.0, 50.0, -25.0], [0.0, 0.0, 0.0]])
    values, scale = to_8_bits(weight, torch.int8)
    assert values.dtype == torch.int8 and scale.shape == (3, 1)
    assert (values * scale - weight).abs().max() <= scale.max() / 2
    assert values.abs().amax(1).tolist() == [127, 127, 0]


def test_a_quantised_model(make_model: Any, tmp_path: Path) -> None:
    model = make_model("qwen2")
    done = quantise(model, tmp_path / "int8")
    tensors, before = load_file(tmp_path / "int8/model.safetensors"), load_file(model / "model.safetensors")
    described = json.loads((tmp_path / "int8/quant_model_description.json").read_text())
    assert done.layers == 14 and done.bytes < done.bytes_before and 0 < done.error < 0.02
    assert tensors.keys() == described.keys() - {"model_quant_type", "version"}
    name = "model.layers.0.mlp.up_proj.weight"
    assert {described[name + suffix] for suffix in ("", "_scale", "_offset")} == {"W8A8_DYNAMIC"}
    assert (tensors[name] * tensors[f"{name}_scale"] - before[name]).abs().max() < 0.01
    assert not tensors[f"{name}_offset"].any()
    for kept in ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias", "model.norm.weight"):
        assert described[kept] == "FLOAT" and torch.equal(tensors[kept], before[kept])
    assert done.perplexity_before > 1 and abs(done.perplexity_after / done.perplexity_before - 1) < 0.2
