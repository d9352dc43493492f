"""Layers that keep a state of a fixed size are batched, and answers stay those of one request alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference.engine.conftest import DELTA, LLAMA, generated, prompts
from transformers import AutoConfig, AutoModelForCausalLM

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.states import state_layers
from npukit.llm import families

GREEDY = SamplingParams(temperature=0, max_tokens=8)
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 16}
KINDS = {
    "qwen3_5_text": DELTA,
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "mamba": {"state_size": 8},  # begins anew with several tokens, and has no keys and values
}
WAYS = {
    "in chunks": EngineOptions(max_num_seqs=8, max_num_batched_tokens=16),
    "few rows, ahead": EngineOptions(max_num_seqs=2, async_scheduling=True, max_num_mixed_tokens=64),
}


def make(kind: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**LLAMA, "pad_token_id": 0, **KINDS[kind]})
    model = AutoModelForCausalLM.from_config(config).eval()
    for layer in state_layers(model):  # remembers for longer than new weights do
        for name in ("A_log", "dt_bias"):
            if hasattr(layer.module, name):
                getattr(layer.module, name).data.sub_(2)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_batched_answers_equal_generate(kind: str) -> None:
    asked, model = prompts(4, 40), make(kind)
    expected = [generated(model, prompt, 8) for prompt in asked]
    for name, options in WAYS.items():
        engine = Engine(make(kind), options)
        for _ in range(2):  # rows are used again
            answers = engine.generate([Request(prompt, GREEDY) for prompt in asked])
            assert [answer.ids for answer in answers] == expected, name
        assert engine.is_paged
        assert engine.stats().cached_tokens == engine.stats().blocks_used == 0


def test_who_gave_way_begins_again() -> None:
    model, asked = make("qwen3_5_text"), [prompt * 15 for prompt in ((5,), (6,), (7,), (8,))]
    expected = [generated(model, prompt, 24) for prompt in asked]
    engine = Engine(model, EngineOptions(max_num_seqs=4, num_blocks=6, async_scheduling=True))
    answers = engine.generate([Request(prompt, SamplingParams(temperature=0, max_tokens=24)) for prompt in asked])
    assert engine.stats().preemptions > 0
    assert [answer.ids for answer in answers] == expected


def test_adapters_of_their_layers_are_mixed(tmp_path: Path) -> None:
    asked = prompts(3)
    expected = [generated(make("qwen3_5_text"), prompt, 8) for prompt in asked]
    layers = LoraConfig(r=4, target_modules=["in_proj_qkv", "out_proj", "q_proj"], init_lora_weights=False)
    tuned = get_peft_model(make("qwen3_5_text"), layers)
    tuned.save_pretrained(tmp_path)
    expected += [generated(tuned, prompt, 8) for prompt in asked]
    engine = Engine(make("qwen3_5_text"), EngineOptions(max_num_seqs=6, max_num_batched_tokens=24))
    engine.load_adapter("own", tmp_path)
    requests = [Request(prompt, GREEDY, adapter=name) for name in (None, "own") for prompt in asked]
    assert [answer.ids for answer in engine.generate(requests)] == expected


def test_between_passes_the_model_is_as_it_was() -> None:
    model, ids = make("bamba"), torch.tensor([prompts(1)[0]])
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
        engine = Engine(model, EngineOptions(max_num_seqs=2))
        engine.generate([Request((1, 2, 3), GREEDY)])
        engine.sleep(keep_cache=True)
        assert torch.equal(model(ids, use_cache=False).logits, before)
        engine.wake_up()
        engine.generate([Request((1, 2, 3), GREEDY)])
        engine.sleep(keep_cache=False)
        assert torch.equal(model(ids, use_cache=False).logits, before)
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_no_tokens_are_guessed() -> None:
    with pytest.raises(NpukitError):
        Engine(make("qwen3_5_text"), EngineOptions(max_num_seqs=2, prompt_lookup=4))


def test_states_take_half_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("qwen3_5_text")
    row = sum(layer.bytes_per_row for layer in state_layers(model))
    monkeypatch.setattr("npukit.inference.engine.sizes._free", lambda *_: 2 * 4 * row)
    engine = Engine(model, EngineOptions(num_blocks=20))
    for prompt in prompts(5, 40):
        engine.add_request(Request(prompt, GREEDY))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (3, 2)
    monkeypatch.setattr("npukit.inference.engine.sizes._free", lambda *_: row)
    with pytest.raises(NpukitError):
        Engine(model, EngineOptions(num_blocks=20))


def test_the_family_knows_the_size_of_its_states() -> None:
    model = make("qwen3_5_text")
    sizes = families.of(model.config).dimensions(json.loads(model.config.to_json_string(use_diff=False)))
    layers = state_layers(model)
    assert sizes.state_layers == len(layers)
    assert {layer.bytes_per_row for layer in layers} == {4 * (sizes.state_inputs + sizes.state_memory)}
