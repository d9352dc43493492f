"""What a card holds when it serves a model, said before it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Npukit

LATENT = {
    **{"num_key_value_heads": 4, "kv_lora_rank": 32, "q_lora_rank": None, "v_head_dim": 16},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
}
TWICE = "Qwen/Qwen2-7B-Instruct"


def planned(npukit: Npukit, *words: str) -> Any:
    result = npukit("plan", "--serve", *words, "--json")
    return json.loads(result.stdout)["result"]


def test_a_cache_in_8_bits_holds_twice_as_much(npukit: Npukit) -> None:
    full, small = (planned(npukit, TWICE, f"kv_cache_dtype={dtype}") for dtype in ("auto", "fp8"))
    assert full["total"] == pytest.approx(small["total"], rel=0.01) and full["fits"]
    assert 1.9 < small["cached_tokens"] / full["cached_tokens"] < 2
    assert (full["full_length"], small["full_length"]) == (23, 44)
    assert full["max_model_len"] == 2**15  # as the model's config.json says
    text = npukit("plan", "--serve", TWICE).stdout
    assert "room for 23 sequences of 32,768 tokens" in text and "fits: a 910B3" in text


def test_weights_that_leave_no_room(npukit: Npukit) -> None:
    assert "does not fit: no sequence of" in npukit("plan", "--serve", "Qwen/Qwen2.5-72B-Instruct").stdout
    assert "leave out --walk" in npukit("plan", "--serve", TWICE, "--walk").stderr


def test_states_are_counted_beside_the_cache(tmp_path: Path, npukit: Npukit) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from npukit.inference.engine.cache import CacheShape
    from npukit.inference.engine.states import state_layers

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    delta = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("qwen3_5_text", **sizes, **delta, vocab_size=300), dtype=torch.bfloat16
    )
    model.save_pretrained(tmp_path)
    plan = planned(npukit, str(tmp_path), "max_num_seqs=2", "max_model_len=64")
    assert plan["states"] == 3 * sum(layer.bytes_per_row for layer in state_layers(model))
    assert plan["cached_token"] == CacheShape.of(model).bytes_per_token
    assert plan["full_length"] == 2


@pytest.mark.parametrize(("kind", "dtype"), [("qwen2", "auto"), ("qwen2", "int8"), ("deepseek_v3", "auto")])
def test_the_engine_takes_what_was_planned(kind: str, dtype: str, folder: Path, npukit: Npukit) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from npukit.inference.engine import Engine, EngineOptions
    from npukit.inference.engine.cache import attention_modules

    file = folder / "models" / "tiny" / "config.json"
    settings = {**json.loads(file.read_text()), **(LATENT if kind == "deepseek_v3" else {}), "model_type": kind}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings | {"max_position_embeddings": 2**17}))
    model.save_pretrained(file.parent)
    plan = planned(npukit, "models/tiny", "max_num_seqs=2", f"kv_cache_dtype={dtype}", "model.dtype=float32")
    assert plan["max_model_len"] == 2**17
    Engine(model, EngineOptions(max_num_seqs=2, kv_cache_dtype=dtype))
    names = ("key_cache", "value_cache", "key_scales", "value_scales")
    held = sum(
        layer.__dict__[name].nbytes for layer in attention_modules(model) for name in names if name in layer.__dict__
    )
    assert plan["cache"] == pytest.approx(held, rel=0.01)
    assert plan["weights"] == pytest.approx(sum(weight.nbytes for weight in model.parameters()), rel=0.01)
