"""The inference engine on an NPU: its fused operators and graphs give the tokens of transformers' generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inference import mtp
from tests.inference.engine.conftest import DELTA, LLAMA, generated, prompts

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.w8a8 import quantize
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.next_tokens import load_next_token_layer

WAYS = {
    "fp32, torch's attention": (torch.float32, EngineOptions(max_num_seqs=4, max_model_len=300)),
    "fused operators": (torch.float16, EngineOptions(max_num_seqs=4, max_model_len=300, enforce_eager=True)),
    "graphs": (torch.float16, EngineOptions(max_num_seqs=4, max_model_len=300)),
    "graphs, prompt lookup": (torch.float16, EngineOptions(max_num_seqs=4, max_model_len=300, prompt_lookup=4)),
    "graphs, chunks": (
        torch.float16,
        EngineOptions(max_num_seqs=4, max_model_len=300, num_blocks=9, max_num_batched_tokens=100),
    ),
}


SMALL = {**LLAMA, "max_position_embeddings": 512}
EXPERTS = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


LATENT = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 512, "q_lora_rank": 32, "first_k_dense_replace": 1},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 64, "v_head_dim": 16, "moe_intermediate_size": 32},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
}


def make_model(kind: str, dtype: torch.dtype, **shape: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL | shape), dtype=dtype).eval()


@pytest.mark.parametrize("way", WAYS)
def test_answers_equal_generate(way: str) -> None:
    dtype, options = WAYS[way]
    model = make_model("qwen2", dtype).to("npu")
    asked = prompts(5, 200)
    expected = [generated(model, prompt, 8) for prompt in asked]
    answers = Engine(model, options).generate(
        [Request(prompt, SamplingParams(temperature=0, max_tokens=8)) for prompt in asked]
    )
    assert [answer.ids for answer in answers] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["plain", "as graphs"])
def test_layers_with_states_give_the_tokens_that_they_give_on_a_cpu(dtype: torch.dtype) -> None:
    model = make_model("qwen3_5_text", dtype, **DELTA)
    asked = prompts(4, 60)
    expected = [generated(model, prompt, 8) for prompt in asked]
    options = EngineOptions(max_num_seqs=3, max_model_len=300, num_blocks=9, max_num_batched_tokens=32)
    engine = Engine(model.to("npu"), options)
    answers = engine.generate([Request(prompt, SamplingParams(temperature=0, max_tokens=8)) for prompt in asked])
    assert [answer.ids for answer in answers] == expected
    assert (engine._runner._graphs is not None) == (dtype == torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["plain", "as graphs"])
def test_experts_give_the_tokens_that_they_give_on_a_cpu(dtype: torch.dtype) -> None:
    model = make_model("qwen3_moe", dtype, **EXPERTS)
    asked = prompts(5, 200)
    expected = [generated(model, prompt, 8) for prompt in asked]
    engine = Engine(model.to("npu"), EngineOptions(max_num_seqs=4, max_model_len=300))
    answers = engine.generate([Request(prompt, SamplingParams(temperature=0, max_tokens=8)) for prompt in asked])
    assert engine.is_paged and [answer.ids for answer in answers] == expected


@pytest.mark.parametrize("way", ["fp32, torch's attention", "graphs, chunks"])
def test_latent_attention_gives_the_tokens_that_it_gives_on_a_cpu(way: str) -> None:
    dtype, options = WAYS[way]
    model = make_model("deepseek_v3", dtype, **LATENT)
    asked = prompts(5, 200)
    expected = [generated(model, prompt, 8) for prompt in asked]
    engine = Engine(model.to("npu"), options)
    answers = engine.generate([Request(prompt, SamplingParams(temperature=0, max_tokens=8)) for prompt in asked])
    assert engine.is_paged and [answer.ids for answer in answers] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["plain", "fused operators"])
def test_the_checkpoints_own_layer_guesses_tokens(dtype: torch.dtype, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = mtp.save("glm4_moe", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    asked = prompts(4, 100)
    expected = [generated(model, prompt, 12) for prompt in asked]
    layer = load_next_token_layer(model.to("npu"), open_checkpoint(folder))
    engine = Engine(model, EngineOptions(max_num_seqs=4, num_speculative_tokens=3), draft=layer)
    answers = engine.generate([Request(prompt, SamplingParams(temperature=0, max_tokens=12)) for prompt in asked])
    assert [answer.ids for answer in answers] == expected
    assert engine.stats().accepted_tokens > engine.stats().draft_tokens / 4


def test_layers_in_8_bits_give_the_tokens_that_they_give_on_a_cpu() -> None:
    reference = make_model("qwen2", torch.float16)
    quantize(reference)
    asked = prompts(3, 60)
    expected = [generated(reference, prompt, 8) for prompt in asked]
    options = EngineOptions(max_num_seqs=4, max_model_len=300, quantization="w8a8")
    engine = Engine(make_model("qwen2", torch.float16).to("npu"), options)
    answers = engine.generate([Request(prompt, SamplingParams(temperature=0, max_tokens=8)) for prompt in asked])
    assert engine.is_paged and [answer.ids for answer in answers] == expected


def test_a_cache_in_8_bits_gives_the_likelihoods_that_it_gives_on_a_cpu() -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=0)
    requests = [Request(prompt, params) for prompt in prompts(4, 200)]
    options = EngineOptions(max_num_seqs=4, max_model_len=300, kv_cache_dtype="int8")
    engines = (Engine(make_model("qwen2", torch.float16).to(device), options) for device in ("cpu", "npu"))
    on_cpu, on_npu = (engine.generate(requests) for engine in engines)
    compared = 0
    for expected, answer in zip(on_cpu, on_npu, strict=True):
        for wanted, token in zip(expected.tokens, answer.tokens, strict=True):
            assert token.logprob == pytest.approx(wanted.logprob, abs=0.1)
            compared += 1
            if token.id != wanted.id:  # two tokens are as likely up to rounding, and what follows is another text
                break
    assert compared > 8
    with pytest.raises(NpukitError, match="has no fp8"):
        Engine(make_model("qwen2", torch.float16).to("npu"), options.model_copy(update={"kv_cache_dtype": "fp8"}))
