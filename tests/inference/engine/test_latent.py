"""Latent attention: the cache holds latent vectors and rotated keys, and whatever is done to a matrix that is absorbed
by queries and results gives the answers that transformers gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference.engine.conftest import LATENT, MakeModel, generated, prompts
from tests.inference.engine.test_engine import GREEDY, WAYS

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.cache import CacheShape, attention_modules
from npukit.inference.engine.w8a8 import quantize
from npukit.llm import families
from npukit.llm.models.outline import Outline
from npukit.performance.plan.memory import cached_token

IN_CHUNKS = EngineOptions(max_num_seqs=9, max_num_batched_tokens=24, async_scheduling=True)
BESIDE = EngineOptions(max_num_seqs=9, max_num_mixed_tokens=256)


def answers(engine: Engine, *adapters: str | None) -> list[list[int]]:
    requests = [Request(prompt, GREEDY, adapter=name) for name in adapters or (None,) for prompt in prompts(3)]
    return [list(answer.ids) for answer in engine.generate(requests)]


def expected(model: Any) -> list[list[int]]:
    return [generated(model, prompt, 12) for prompt in prompts(3)]


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])  # values wider and narrower than keys
def test_answers_equal_generate(kind: str, make_model: MakeModel) -> None:
    asked, model = prompts(6), make_model(kind)
    wanted = [generated(model, prompt, 12) for prompt in asked]
    for name in WAYS if kind == "deepseek_v3" else ("at once",):
        engine = Engine(make_model(kind), WAYS[name])
        assert engine.is_paged
        assert [answer.ids for answer in engine.generate([Request(prompt, GREEDY) for prompt in asked])] == wanted, name


def test_preempted_sequences_and_a_reused_prefix(make_model: MakeModel) -> None:
    asked = [prompt * 15 for prompt in ((5,), (6,), (7,), (8,))]
    engine = Engine(make_model("deepseek_v3"), EngineOptions(max_num_seqs=4, num_blocks=7, async_scheduling=True))
    settings = SamplingParams(temperature=0, max_tokens=40)
    wanted = [generated(make_model("deepseek_v3"), prompt, 40) for prompt in asked]
    assert [answer.ids for answer in engine.generate([Request(prompt, settings) for prompt in asked])] == wanted
    assert engine.stats().preemptions > 0
    before = engine.stats().cached_tokens
    longer = asked[3] + tuple(wanted[3])
    assert engine.generate([Request(longer, GREEDY)])[0].ids == generated(make_model("deepseek_v3"), longer, 12)
    assert engine.stats().cached_tokens > before


@pytest.mark.parametrize("options", [IN_CHUNKS, BESIDE], ids=["in chunks", "beside"])
def test_adapters_of_all_its_matrices(options: EngineOptions, make_model: MakeModel, tmp_path: Path) -> None:
    wanted = {None: expected(make_model("deepseek_v3"))}
    for rank in (4, 12):
        torch.manual_seed(rank)
        targets = ["q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
        tuning = LoraConfig(r=rank, lora_alpha=16, target_modules=targets, init_lora_weights=False)
        tuned = get_peft_model(make_model("deepseek_v3"), tuning)
        tuned.save_pretrained(tmp_path / str(rank))
        wanted[str(rank)] = expected(tuned)
    engine = Engine(make_model("deepseek_v3"), options)
    for name in ("4", "12"):
        engine.load_adapter(name, tmp_path / name)
    assert answers(engine, *wanted) == [ids for own in wanted.values() for ids in own]
    assert wanted["4"] != wanted[None] != wanted["12"]


def test_an_absorbed_matrix_that_was_trained_whole_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    tuning = LoraConfig(r=4, target_modules=["o_proj"], modules_to_save=["kv_b_proj"])
    get_peft_model(make_model("deepseek_v3"), tuning).save_pretrained(tmp_path)
    with pytest.raises(NpukitError, match="--merge-lora"):
        Engine(make_model("deepseek_v3"), IN_CHUNKS).load_adapter("whole", tmp_path)


def test_a_model_in_training_answers_with_what_it_has_learnt(make_model: MakeModel) -> None:
    tuning = LoraConfig(r=4, target_modules=["kv_b_proj"], init_lora_weights=False)
    tuned = get_peft_model(make_model("deepseek_v3"), tuning)
    wanted = expected(tuned)
    engine = Engine(tuned.get_base_model(), EngineOptions(max_num_seqs=4), trained_in=torch.float32)
    for _ in range(2):
        assert answers(engine) == wanted
        engine.sleep(keep_cache=True)
        ids = torch.tensor([prompts(1)[0]])
        tuned(ids, labels=ids).loss.backward()  # transformers' own attention is back
        engine.wake_up()
    engine.sleep(keep_cache=False)
    assert not any("expand_kv" in vars(layer) for layer in attention_modules(tuned.get_base_model()))


def test_in_8_bits(make_model: MakeModel) -> None:
    quantized = make_model("deepseek_v3")
    quantize(quantized)
    engine = Engine(make_model("deepseek_v3"), EngineOptions(max_num_seqs=4, quantization="w8a8"))
    same = [
        a == b
        for own, other in zip(answers(engine), expected(quantized), strict=True)
        for a, b in zip(own, other, strict=True)
    ]
    assert sum(same) > 0.6 * len(same), "with weights in 8 bits"
    exact, small = (
        Engine(make_model("deepseek_v3"), EngineOptions(max_num_seqs=4, kv_cache_dtype=dtype)).generate(
            [
                Request(prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=0), prompt_logprobs=0)
                for prompt in prompts(3)
            ]
        )
        for dtype in ("auto", "int8")
    )
    gaps = [
        abs(one.logprob - other.logprob)
        for a, b in zip(exact, small, strict=True)
        for one, other in zip(a.prompt_logprobs[1:], b.prompt_logprobs[1:], strict=True)
    ]
    assert 0 < sum(gaps) / len(gaps) < 0.05, "with a cache in 8 bits"


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_a_token_takes_what_plan_says(dtype: str, make_model: MakeModel) -> None:
    model = make_model("deepseek_v3")
    Engine(model, EngineOptions(max_num_seqs=2, num_blocks=9, kv_cache_dtype=dtype))
    names = ("key_cache", "value_cache", "key_scales", "value_scales")
    held = sum(vars(layer)[name].nbytes for layer in attention_modules(model) for name in names if name in vars(layer))
    config = {**LATENT, "model_type": "deepseek_v3"}
    outline = Outline({}, families.of(config).dimensions(config))
    token = cached_token(outline, 4 if dtype == "auto" else 1)
    assert held == 9 * 16 * token
    assert token == CacheShape.of(model, torch.float32 if dtype == "auto" else torch.int8).bytes_per_token
