"""A model's layer for multi-token prediction: it guesses what it should, and changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference import mtp
from tests.inference.engine.conftest import prompts

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.sequence import Sequence
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.next_tokens import NextTokenLayer, load_next_token_layer

COMMON: dict[str, Any] = {"num_speculative_tokens": 3, "paged": True}
WAYS = {
    "at once": EngineOptions(**COMMON, max_num_seqs=6),
    "prompts in chunks, few blocks": EngineOptions(**COMMON, max_num_seqs=4, num_blocks=11, max_num_batched_tokens=16),
    "prompts beside decoding, few rows": EngineOptions(**COMMON, max_num_seqs=2, max_num_mixed_tokens=256),
}
SETTINGS = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=0.7, seed=5, max_tokens=24, logprobs=2),
    SamplingParams(temperature=0, repetition_penalty=1.1, max_tokens=24),  # is never guessed
    SamplingParams(temperature=0, max_tokens=1),
    SamplingParams(temperature=0.7, seed=6, max_tokens=24),
    SamplingParams(temperature=0, max_tokens=40),
]
Loaded = Callable[..., tuple[Any, NextTokenLayer]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The model of a family and its layer, anew each time."""
    from transformers import AutoModelForCausalLM

    folders: dict[tuple[str, float], Path] = {}

    def load(kind: str, loud: float = mtp.LOUD) -> tuple[Any, NextTokenLayer]:
        if (kind, loud) not in folders:
            folders[kind, loud] = mtp.save(kind, tmp_path_factory.mktemp("mtp"), loud)
        folder = folders[kind, loud]
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        return model, load_next_token_layer(model, open_checkpoint(folder))

    return load


@torch.no_grad()
def guessed(model: Any, layer: NextTokenLayer, tokens: list[int], count: int) -> tuple[int, ...]:
    """What the layer guesses after these tokens, without a cache."""
    ids = torch.tensor([tokens])
    hidden, following = model.base_model(ids[:, :-1], use_cache=False)[0], ids[:, 1:]
    for _ in range(count):
        places = torch.arange(following.shape[1])[None]
        last = layer(hidden, model.get_input_embeddings()(following), position_ids=places)[:, -1:]
        hidden = torch.cat([hidden, last], 1)
        following = torch.cat([following, model.lm_head(last).argmax(-1)], 1)
    return tuple(following[0, len(tokens) - 1 :].tolist())


@pytest.mark.parametrize("kind", mtp.SHAPES)
def test_answers_stay_the_same_and_most_guesses_are_right(kind: str, loaded: Loaded) -> None:
    requests = [Request(prompt, one) for prompt, one in zip(prompts(6), SETTINGS, strict=True)]
    expected = Engine(loaded(kind)[0], WAYS["at once"]).generate(requests)
    for name, options in WAYS.items() if kind == "glm4_moe" else [("at once", WAYS["at once"])]:
        model, layer = loaded(kind)
        engine = Engine(model, options, draft=layer)
        answers = engine.generate(requests)
        assert [answer.ids for answer in answers] == [answer.ids for answer in expected], name
        stats = engine.stats()
        assert 0.2 * stats.draft_tokens < stats.accepted_tokens < stats.draft_tokens, name
        assert stats.blocks_used == 0 and bool(stats.preemptions) == ("few blocks" in name)
        logprobs = [[token.logprob for token in answer[1].tokens] for answer in (answers, expected)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


@pytest.mark.parametrize("way", ["prompts in chunks, few blocks", "prompts beside decoding, few rows"])
def test_guesses_are_those_without_a_cache(way: str, loaded: Loaded) -> None:
    model, layer = loaded("glm4_moe", loud=1)  # what comes before the last token matters
    engine = Engine(model, WAYS[way], draft=layer)
    seen = record_guesses(engine)
    engine.generate([Request(prompt, one) for prompt, one in zip(prompts(6), SETTINGS, strict=True)])
    reference = loaded("glm4_moe", loud=1)
    for tokens, guess in seen[:: len(seen) // 20]:
        assert guess == guessed(*reference, tokens, len(guess))


def record_guesses(engine: Engine) -> list[tuple[list[int], tuple[int, ...]]]:
    """From now on: the tokens of a sequence, and what was guessed after them."""
    proposer, seen = engine._scheduler.proposer, []
    assert proposer is not None
    propose = proposer.propose

    def recorded(sequences: list[Sequence], limits: list[int]) -> list[tuple[int, ...]]:
        guesses = propose(sequences, limits)
        seen.extend((list(one.tokens), guess) for one, guess in zip(sequences, guesses, strict=True) if guess)
        return guesses

    proposer.propose = recorded  # type: ignore[method-assign]
    return seen


def test_a_prefix_is_reused_with_what_the_layer_knows_of_it(loaded: Loaded) -> None:
    model, layer = loaded("glm4_moe")
    engine = Engine(model, EngineOptions(**COMMON, max_num_seqs=4), draft=layer)
    request = Request(prompts(1, 60)[0] * 3, SamplingParams(temperature=0, max_tokens=24))
    first, passed = engine.generate([request])[0].ids, engine.stats()
    assert engine.generate([request])[0].ids == first
    stats = engine.stats()
    assert stats.cached_tokens > 0
    # The same guesses are right: the layer's own cache holds the prefix too.
    assert stats.accepted_tokens == 2 * passed.accepted_tokens and stats.draft_tokens == 2 * passed.draft_tokens


def test_adapters_in_one_batch_answer_as_they_do_alone(loaded: Loaded, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    get_peft_model(loaded("glm4_moe")[0], config).save_pretrained(tmp_path / "lora", save_embedding_layers=False)
    asked = [
        Request(prompt, SETTINGS[0], adapter) for prompt, adapter in zip(prompts(4), [None, "own"] * 2, strict=True)
    ]
    answers = []
    for guesses in (False, True):
        model, layer = loaded("glm4_moe")
        engine = Engine(model, EngineOptions(**COMMON, max_num_seqs=4), draft=layer if guesses else None)
        engine.load_adapter("own", tmp_path / "lora")
        answers.append([answer.ids for answer in engine.generate(asked)])
    assert answers[0] == answers[1] and engine.stats().accepted_tokens > 0


def test_it_computes_what_transformers_does(loaded: Loaded) -> None:
    layers = pytest.importorskip("transformers.modeling_layers")
    if not hasattr(layers, "MtpModel"):
        pytest.skip("this transformers has no multi-token prediction")
    from transformers.cache_utils import MtpCache

    model, layer = loaded("mellum")
    theirs, ids = layers.MtpModel.from_pretrained(model), torch.tensor([prompts(4)[2]])
    with torch.no_grad():
        hidden = model.base_model(ids[:, :-1], use_cache=False)[0]
        cache = MtpCache(config=model.config.get_mtp_config())
        _, logits, _ = theirs(ids[:, 1:], hidden, None, torch.arange(1, ids.shape[1])[None], cache)
        embedded = model.get_input_embeddings()(ids[:, 1:])
        own = model.lm_head(layer(hidden, embedded, position_ids=torch.arange(ids.shape[1] - 1)[None])[:, -1:])
    torch.testing.assert_close(own, logits, rtol=1e-4, atol=1e-3)


def test_the_cache_of_the_layer_is_counted(loaded: Loaded) -> None:
    model, layer = loaded("glm4_moe")
    engine = Engine(model, EngineOptions(**COMMON, max_num_seqs=2, num_blocks=8), draft=layer)
    caches = [module.key_cache for one in (model, layer) for module in one.modules() if hasattr(module, "key_cache")]
    assert len(caches) == mtp.LAYERS + 1 and len({cache.shape for cache in caches}) == 1
    assert engine.max_model_len == 7 * 16


def test_what_cannot_guess_is_told(loaded: Loaded, tmp_path: Path, tiny_qwen2: Path) -> None:
    from transformers import AutoModelForCausalLM

    with pytest.raises(NpukitError, match="qwen2 models"):
        load_next_token_layer(AutoModelForCausalLM.from_pretrained(tiny_qwen2), open_checkpoint(tiny_qwen2))
    model, layer = loaded("glm4_moe")
    model.save_pretrained(tmp_path)  # as transformers writes it: without the layer
    with pytest.raises(NpukitError, match="has no layer for multi-token prediction"):
        load_next_token_layer(model, open_checkpoint(tmp_path))
    with pytest.raises(NpukitError, match="one by one"):
        Engine(model, EngineOptions(paged=False), draft=layer)
