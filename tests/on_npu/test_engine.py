"""The inference engine on an NPU: its fused operators and graphs give the tokens of transformers' generate."""

from __future__ import annotations

import pytest
import torch
from tests.inference.engine.conftest import generated, prompts

from npukit.inference.engine import Engine, EngineOptions, Request, Sampling

WAYS = {
    "fp32, torch's attention": (torch.float32, EngineOptions(rows=4, longest=300)),
    "fused operators": (torch.float16, EngineOptions(rows=4, longest=300, graphs=False)),
    "graphs": (torch.float16, EngineOptions(rows=4, longest=300)),
    "graphs, chunks": (torch.float16, EngineOptions(rows=4, longest=300, blocks=9, prefill_tokens=100)),
}


@pytest.mark.parametrize("way", WAYS)
def test_answers_equal_generate(way: str) -> None:
    from transformers import AutoModelForCausalLM, Qwen2Config

    dtype, options = WAYS[way]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().to("npu")
    asked = prompts(5, 200)
    expected = [generated(model, prompt, 8) for prompt in asked]
    answers = Engine(model, options).generate(
        [Request(prompt, Sampling(temperature=0, max_tokens=8)) for prompt in asked]
    )
    assert [answer.ids for answer in answers] == expected
