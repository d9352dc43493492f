"""The sampler: the engine on the modules that are trained."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.llm.config.options import Config
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.collate import Collator
from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.finetune.train import make_model
from npukit.llm.tasks.losses.grpo import log_probabilities
from npukit.rl.reference import InitialWeights
from npukit.rl.sampler import Sampler
from npukit.rl.samples import SampleCollator
from npukit.rl.turns.conversing import Asked


@pytest.fixture
def adapted(tiny_qwen2: Path) -> Any:
    """A model with an adapter that has learnt something."""
    config = Config(task="grpo", model={"path": str(tiny_qwen2)}, data={"train": "rows.jsonl"})
    model = make_model(config, str(tiny_qwen2), torch.device("cpu"))
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_the_learner_thinks_what_the_sampler_thought(
    adapted: Any, tiny_tokenizer: Any, keep: bool, joined: bool
) -> None:
    options = GrpoOptions(max_completion_length=12, temperature=0.7, keep_cache=keep)
    sampler = Sampler(adapted, torch.float32, tiny_tokenizer, frozenset({2}), options)
    prompts = [RolloutPrompt(0, tuple(range(5, 45)), [], {}), RolloutPrompt(1, (7, 8, 9), [], {})]
    base = adapted.get_base_model()
    before = base.config._attn_implementation
    if not joined:
        base.set_attn_implementation("sdpa")
    for _ in range(2):
        samples = sampler.sample([prompts[0], prompts[0], prompts[1]], [1, 2, 3])
        assert hasattr(base.model.layers[0].self_attn, "key_cache") == keep
        batch = SampleCollator(Collator(joined, 0), masks_cut=False)(samples)
        with torch.no_grad():
            actual, entropy = log_probabilities(adapted, batch, options.temperature)
        assert ((actual - batch["sampled"]) * batch["mask"]).abs().max() < 1e-5
        assert (entropy > 0).all()
        with torch.no_grad():  # an update of the learner is one of the sampler
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.mul_(0.5)
    assert samples[0].ids.tolist() != samples[1].ids.tolist()
    assert base.config._attn_implementation == (before if joined else "sdpa")


def test_the_sampler_leaves_alone_what_is_compiled_for_the_learner(adapted: Any, tiny_tokenizer: Any) -> None:
    def compiled(*_: Any, **__: Any) -> None:
        raise AssertionError("it is called with what the sampler passes")

    layers = adapted.get_base_model().model.layers
    for layer in layers:
        layer._compiled_call_impl = compiled
    sampler = Sampler(adapted, torch.float32, tiny_tokenizer, frozenset(), GrpoOptions(max_completion_length=2))
    assert len(sampler.sample([RolloutPrompt(0, (7, 8, 9), [], {})], [1])[0].ids) == 2
    assert all(layer._compiled_call_impl is compiled for layer in layers)


def test_adapters_are_cast_once_for_all_passes_of_a_generation(
    adapted: Any, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npukit.rl.layers._SMALL", 1)  # a tiny model's adapter is not
    layer = adapted.get_base_model().model.layers[0].self_attn.q_proj.lora_A["default"]
    seen: list[tuple[torch.dtype, int, bool]] = []
    layer.register_forward_hook(
        lambda module, *_: seen.append((module.weight.dtype, module.weight.data_ptr(), gc.isenabled()))
    )
    options = GrpoOptions(max_completion_length=4)
    sampler = Sampler(adapted.to(torch.bfloat16), torch.bfloat16, tiny_tokenizer, frozenset(), options)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    before, value = layer.weight.data_ptr(), layer.weight.detach().clone()
    prompt = RolloutPrompt(0, (7, 8, 9), [], {})
    answers = [sampler.sample([prompt], [1])[0] for _ in range(2)]
    assert {dtype for dtype, _, _ in seen} == {torch.bfloat16} and len({place for _, place, _ in seen}) == 1
    assert not any(collects for _, _, collects in seen) and gc.isenabled()
    assert layer.weight.data_ptr() == before and layer.weight.equal(value)
    monkeypatch.setattr("npukit.rl.layers._SMALL", 0)  # as autocast casts them
    assert sampler.sample([prompt], [1])[0].sampled.tolist() == answers[0].sampled.tolist()
    assert {dtype for dtype, _, _ in seen} == {torch.bfloat16, torch.float32}


def test_a_text_ends_an_answer(adapted: Any, tiny_tokenizer: Any) -> None:
    prompts = [RolloutPrompt(0, tuple(range(5, 45)), [], {})] * 2
    make = {"max_completion_length": 24}
    whole = Sampler(adapted, torch.float32, tiny_tokenizer, frozenset(), GrpoOptions(**make)).sample(prompts, [1, 2])
    stop = tiny_tokenizer.decode(whole[0].ids[7:9], skip_special_tokens=True)
    options = GrpoOptions(**make, stop=stop)
    first, second = Sampler(adapted, torch.float32, tiny_tokenizer, frozenset(), options).sample(prompts, [1, 2])
    length = len(first.ids)
    assert 0 < length < 24 and not first.is_cut and second.is_cut == (stop not in whole[1].text)
    assert (first.ids == whole[0].ids[:length]).all() and (first.sampled == whole[0].sampled[:length]).all()
    assert first.text.count(stop) == 1 and stop not in tiny_tokenizer.decode(first.ids[:-1], skip_special_tokens=True)


def test_answers_to_one_prompt_share_its_cache(adapted: Any) -> None:
    engine = Engine(adapted.get_base_model(), EngineOptions(max_model_len=64, num_blocks=40, block_size=16))
    sampling = [SamplingParams(max_tokens=4, seed=seed) for seed in range(4)]
    together = engine.generate([Request(tuple(range(40)), params) for params in sampling])
    assert engine.stats().cached_tokens == 3 * 32
    engine.sleep(keep_cache=True)
    engine.wake_up()
    alone = [engine.generate([Request(tuple(range(40)), params)])[0] for params in sampling]
    assert [answer.ids for answer in alone] == [answer.ids for answer in together]


def test_the_reference_is_the_model_as_it_began(adapted: Any) -> None:
    ids = torch.arange(5, 25)[None]
    reference = InitialWeights(adapted)
    first = adapted(input_ids=ids, position_ids=torch.arange(20)[None], row_ends=(20,)).logits
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    moved = adapted(input_ids=ids, position_ids=torch.arange(20)[None], row_ends=(20,)).logits
    with reference:
        assert adapted(input_ids=ids, position_ids=torch.arange(20)[None], row_ends=(20,)).logits.equal(first)
    assert adapted(input_ids=ids, position_ids=torch.arange(20)[None], row_ends=(20,)).logits.equal(moved)
    assert not moved.equal(first)


@pytest.mark.parametrize("keep", [True, False])
def test_one_engine_serves_a_generation_however_long_its_prompts_are(
    adapted: Any, tiny_tokenizer: Any, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts with their answers are longer than the model reads; those that are too long for the cache are told."""
    made: list[Engine] = []
    monkeypatch.setattr(Engine, "__init__", counting_calls(Engine.__init__, made))
    positions = adapted.config.max_position_embeddings
    prompt = RolloutPrompt(0, tuple(number % 90 for number in range(positions - 3)), [], {})
    sampler = Sampler(adapted, torch.float32, tiny_tokenizer, frozenset(), GrpoOptions(keep_cache=keep))
    for _ in range(2):
        with sampler.awake() as draw:
            for size in (2, 1):
                answers = draw([Asked(prompt, (), seed, 100) for seed in range(size)])
                assert [len(answer.ids) for answer in answers] == [3] * size and not answers[0].problem
    assert len(made) == (1 if keep else 2)
    monkeypatch.setattr("npukit.inference.engine.engine.blocks_that_fit", lambda *_, **__: 4)
    sampler = Sampler(adapted, torch.float32, tiny_tokenizer, frozenset(), GrpoOptions(max_completion_length=4))
    long, short = sampler.sample([prompt, RolloutPrompt(1, (7, 8), [], {})], [1, 2])
    assert long.problem and long.is_cut and not long.mask.any() and len(short.ids) == 4 and not short.problem


def counting_calls(called: Any, calls: list[Any]) -> Any:
    def counted(self: Any, *args: Any, **more: Any) -> None:
        calls.append(self)
        called(self, *args, **more)

    return counted
