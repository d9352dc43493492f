"""Families whose attention is plain or latent answer in npukit's engine as in transformers' generate."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.llm import families

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": None,
    "max_position_embeddings": 128,
}
HEADS_BY_WIDTH = ("olmo2", "phi3", "smollm3")  # their configurations have no head_dim
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 128, "eos_token_id": None}
EXPERTS = {
    "num_experts": 4,  # Qwen's name, and Mixtral's
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
LATENT = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24, "v_head_dim": 12},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "head_dim": 8, "moe_intermediate_size": 32},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "moe_topk": 2},  # LongCat's names
}
# Models that see are not served yet.
PLAIN = sorted(
    name for name, family in families.known().items() if family.attention == "plain" and name not in families.visions()
)
PACKED = sorted(name for name, family in families.known().items() if family.attention == "latent")


@pytest.mark.parametrize("kind", PLAIN + PACKED)
def test_greedy_tokens(kind: str) -> None:
    assert answers_as_generate_does(kind)


@pytest.mark.parametrize("kind", ["arcee", "starcoder2", "gemma3_text", "glm4_moe", "lfm2", "longcat_flash", "granite"])
def test_families_without_a_file_are_tried(kind: str) -> None:
    assert answers_as_generate_does(kind)


@pytest.mark.parametrize("kind", ["stablelm", "gptj", "bloom"])
def test_what_the_paged_cache_does_not_compute_has_its_own(kind: str) -> None:
    assert not answers_as_generate_does(kind)  # another attention, none of its own, biases by distance


@pytest.mark.parametrize("kind", ["rwkv", "openai-gpt", "recurrent_gemma"])
def test_models_that_do_not_use_a_cache_of_transformers_see_every_token(kind: str) -> None:
    assert not answers_as_generate_does(kind)


def answers_as_generate_does(kind: str) -> bool:
    """Compares them; whether the cache is paged."""
    torch.manual_seed(0)
    shape = GPT2 if kind == "gpt2" else SMALL | ({} if kind in HEADS_BY_WIDTH else {"head_dim": 16})
    if "moe" in kind or kind == "mixtral":
        shape = {**shape, **EXPERTS}
    if kind in PACKED or kind == "longcat_flash":
        shape = SMALL | LATENT
    if kind == "openai-gpt":
        shape = GPT2
    if kind == "lfm2":  # convolutions keep a state
        shape = {**shape, "layer_types": ["conv", "full_attention"] * 2}
    if kind == "gptj":
        shape = {**GPT2, "rotary_dim": 8}
    if kind == "granite":
        shape = {**shape, "logits_scaling": 8}
    if kind in ("mistral", "phi3"):
        shape = {**shape, "sliding_window": None}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # so that the likeliest token is clear
    prompts = [torch.randint(1, 300, (length,)).tolist() for length in (5, 21)]
    expected = [
        model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, attention_mask=torch.ones(1, len(ids)))
        for ids in prompts
    ]
    engine = Engine(model, EngineOptions(max_model_len=64))
    answers = engine.generate([Request(tuple(ids), SamplingParams(temperature=0, max_tokens=8)) for ids in prompts])
    assert [[*ids, *answer.ids] for ids, answer in zip(prompts, answers, strict=True)] == [
        answer[0].tolist() for answer in expected
    ]
    return engine.is_paged
