"""Small models whose likeliest token is clear, and what transformers' own generate says."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

LLAMA = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": None,
}
GPT2 = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
DELTA = {  # gated delta rule, as in Qwen3.5
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 32,
}
LATENT = {
    **LLAMA,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SHAPES = {
    "llama": LLAMA,
    "qwen2": LLAMA,
    "qwen3": {**LLAMA, "head_dim": 32},
    "mistral": {**LLAMA, "sliding_window": 20},
    "gpt2": {**GPT2, "eos_token_id": None},
    "gemma2": {**LLAMA, "head_dim": 16, "sliding_window": 16},  # not plain: its scores are capped
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "v_head_dim": 32},
    "deepseek_v3": LATENT,
}
MakeModel = Callable[..., Any]


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """`make_model("qwen2")`: the same weights each time."""

    def make(kind: str, dtype: torch.dtype = torch.float32) -> Any:
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **copy.deepcopy(SHAPES[kind]))
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()

    return make


def prompts(count: int, longest: int = 60) -> list[tuple[int, ...]]:
    """Random ones of all lengths."""
    draw = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, longest, (count,), generator=draw).tolist()
    return [tuple(torch.randint(1, 300, (length,), generator=draw).tolist()) for length in lengths]


def generated(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    """The greedy answer of transformers."""
    ids = torch.tensor([prompt], device=model.device)
    mask = torch.ones_like(ids)
    answer = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return answer[0, len(prompt) :].tolist()
