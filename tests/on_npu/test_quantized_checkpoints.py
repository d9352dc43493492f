"""Layers of GPTQ and AWQ checkpoints stay in 4 bits on an NPU, and compute what their weights do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.quantized import quantized_copy
from transformers import AutoModelForCausalLM

from npukit.inference.engine import Engine
from npukit.inference.engine.request import Request, SamplingParams
from npukit.inference.engine.weight_only import WeightOnlyLinear
from npukit.inference.loading import load
from npukit.llm.config.options import ModelOptions
from npukit.llm.config.use import EngineOptions, Use


@pytest.mark.parametrize(
    ("kind", "dtype"), [("awq", torch.int32), ("gptq-act-order", torch.int32), ("gptq-8", torch.int8)]
)
def test_weights_stay_small_and_answers_are_those_of_16_bits(
    kind: str, dtype: torch.dtype, tiny_qwen2: Path, tmp_path: Path
) -> None:
    exact = quantized_copy(tiny_qwen2, tmp_path / "small", kind)
    expected = AutoModelForCausalLM.from_pretrained(tiny_qwen2, dtype=torch.float16)
    expected.load_state_dict(exact, strict=False)
    options = ModelOptions(path=str(tmp_path / "small"), dtype="float16")
    model = load(Use(model=options), torch.device("npu")).model
    layer = model.model.layers[0].mlp.gate_proj
    assert isinstance(layer, WeightOnlyLinear) and layer.weight.dtype == dtype
    ids = torch.arange(40)[None]
    torch.testing.assert_close(model(ids.npu()).logits.cpu(), expected.npu()(ids.npu()).logits.cpu(), rtol=0, atol=2e-3)

    request = Request(tuple(range(20)), SamplingParams(temperature=0, max_tokens=8))
    answers = [Engine(served, EngineOptions()).generate([request])[0].ids for served in (model, expected)]
    assert answers[0] == answers[1]
