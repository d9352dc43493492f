"""Answers about pictures are those of transformers' own generate, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hostile_media import noise, saved
from tests.seeing import FAMILIES, NOT_FOR_MODELS, about_tokens, processor_of, written

from npukit.inference.engine import Engine
from npukit.inference.engine.request import Request, RequestOutput, SamplingParams
from npukit.inference.loading import Loaded, load
from npukit.inference.pictures import from_disk
from npukit.llm.config.use import EngineOptions, Use

WHO = {"type": "text", "text": "Who?"}
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=0)
AS_GREEDY: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
AS_GREEDY |= {"return_dict_in_generate": True, "output_logits": True}
SMALL = {"max_model_len": 1024, "block_size": 8, "max_num_seqs": 8, "num_blocks": 400}
MakeLoaded = Callable[[str], Loaded]


@pytest.fixture(scope="module")
def loaded(seeing_models: Callable[[str], Path]) -> MakeLoaded:
    return lambda family: load(Use.model_validate({"model": {"path": str(seeing_models(family))}}))


def talk(*pieces: str) -> list[dict[str, Any]]:
    """Two turns with pictures, which are named *.png."""
    parts = [
        {"type": "image", "image": piece} if piece.endswith(".png") else {"type": "text", "text": piece}
        for piece in pieces
    ]
    half = len(parts) // 2
    return [
        {"role": "user", "content": parts[:half]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": parts[half:]},
    ]


TALKS = [
    talk("What is ", "a.png", "? ", "And ", "c.png", " here?"),
    talk("What is ", "a.png", "? ", "And ", "d.png", " here?"),
    talk("b.png", "e.png", "Which?", "And now?"),
    [{"role": "user", "content": "No picture at all."}],
]


def asked(model: Loaded, talks: list[Any], pictures: Path) -> list[Request]:
    fetch = from_disk(pictures, pictures)
    return [model.request(talk, GREEDY, fetch=fetch)[1] for talk in talks]


Answer = list[tuple[int, float]]  # tokens and their log-probabilities


def generated(folder: Path, talks: list[Any], pictures: Path) -> list[Answer]:
    """By transformers' own parts: its processor, its tokenizer, its generate, one conversation at a time."""
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoTokenizer

    model = AutoModelForImageTextToText.from_pretrained(folder)
    family = model.config.model_type
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), processor_of(Path(folder))
    answers = []
    for messages in talks:
        turns = [message["content"] for message in messages if isinstance(message["content"], list)]
        images = [Image.open(pictures / part["image"]) for parts in turns for part in parts if "image" in part]
        more = {"crop_to_patches": True} if family == "internvl" else {}
        seen = processor(images=images, return_tensors="pt", **more) if images else {}
        texts = iter(written(family, seen) if images else [])
        text = ""
        for message in messages:
            parts = [{"text": message["content"]}] if isinstance(message["content"], str) else message["content"]
            content = "".join(next(texts) if "image" in part else part["text"] for part in parts)
            text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
        ids = torch.tensor([tokenizer.encode(f"{text}<|im_start|>assistant\n", add_special_tokens=False)])
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen}
        batch |= about_tokens(family, ids, seen, model.config.image_token_id, ids.shape[1])
        batch = {name: value for name, value in batch.items() if name not in NOT_FOR_MODELS}
        model.base_model.rope_deltas = None  # transformers would go on with those of the conversation before
        generated_ = model.generate(**batch, **AS_GREEDY)
        tokens = generated_.sequences[0, ids.shape[1] :].tolist()
        logprobs = [
            step[0].log_softmax(-1)[token].item() for step, token in zip(generated_.logits, tokens, strict=True)
        ]
        answers.append(list(zip(tokens, logprobs, strict=True)))
    return answers


def assert_same(actual: list[RequestOutput], wanted: list[Answer]) -> None:
    for own, other in zip(actual, wanted, strict=True):
        assert own.ids == [token for token, _ in other]
        assert [token.logprob for token in own.tokens] == pytest.approx([logprob for _, logprob in other], abs=1e-4)


# What the paged cache does not compute.
ONE_BY_ONE = ("mllama", "gemma4", "llama4")
WITH_STATES = ("qwen3_5", "qwen3_5_moe", "minicpmv4_6")  # which no prompt can begin with


@pytest.mark.parametrize("family", ONE_BY_ONE)
def test_sequences_with_caches_of_their_own_see_too(
    family: str, loaded: MakeLoaded, seeing_models: Callable[[str], Path], pictures: Path
) -> None:
    wanted = generated(seeing_models(family), TALKS, pictures)
    model = loaded(family)
    engine = Engine(model.model, EngineOptions(**SMALL, max_num_batched_tokens=7))
    assert not engine.is_paged
    assert_same(engine.generate(asked(model, TALKS, pictures)), wanted)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ONE_BY_ONE])
def test_answers_are_those_of_transformers(
    family: str, loaded: MakeLoaded, seeing_models: Callable[[str], Path], pictures: Path
) -> None:
    """Two pictures in a conversation, batched with text, in chunks; then again from the cache, and with preemption."""
    wanted = generated(seeing_models(family), TALKS, pictures)
    gaps = [abs(one - other) for (_, one), (_, other) in zip(*wanted[:2], strict=True)]
    assert max(gaps) > 3e-4  # the second picture makes a difference
    model = loaded(family)
    requests = asked(model, TALKS, pictures)
    cut = Engine(model.model, EngineOptions(**SMALL, max_num_batched_tokens=7))
    for _ in range(2):
        assert_same(cut.generate(requests), wanted)
    assert cut.is_paged
    if family not in WITH_STATES:
        assert cut.stats().cached_tokens > sum(len(request.prompt) for request in requests) * 0.8
    tight = 1 + sum(len(request.prompt) // 8 + 1 for request in requests)  # enough to begin them all, and to end some
    options = {**SMALL, "num_blocks": tight, "enable_prefix_caching": False}
    crowded = Engine(model.model, EngineOptions(**options))
    assert_same(crowded.generate(requests), wanted)
    assert crowded.stats().preemptions


def test_a_cache_in_8_bits_sees_too(loaded: MakeLoaded, pictures: Path) -> None:
    model = loaded("qwen2_5_vl")
    requests = asked(model, TALKS, pictures)
    exact, small = (
        Engine(model.model, EngineOptions(**SMALL, kv_cache_dtype=dtype, max_num_batched_tokens=7)).generate(requests)
        for dtype in ("auto", "int8")
    )
    assert [answer.ids for answer in small] == [answer.ids for answer in exact]
    logprobs = [[token.logprob for answer in answers for token in answer.tokens] for answers in (small, exact)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=0.02) and logprobs[0] != logprobs[1]


def test_pictures_of_one_size_do_not_share_what_was_computed(loaded: MakeLoaded) -> None:
    """Their tokens are the same, and so are those of the text that names no picture at all."""
    model = loaded("qwen2_vl")
    talks = [
        [{"role": "user", "content": [{"type": "image", "image": saved(noise(seed=seed), "PNG")}, WHO]}]
        for seed in range(2)
    ]
    requests = asked(model, talks, Path())
    requests.append(Request(requests[0].prompt, GREEDY))
    assert len({request.prompt for request in requests}) == 1
    engine = Engine(model.model, EngineOptions(**SMALL))
    one_by_one = [engine.generate([request])[0] for request in requests]
    alone = Engine(model.model, EngineOptions(**SMALL, enable_prefix_caching=False)).generate(requests)
    for actual, wanted in zip(one_by_one, alone, strict=True):
        assert [token.logprob for token in actual.tokens] == pytest.approx([token.logprob for token in wanted.tokens])
    first = [answer.tokens[0].logprob for answer in alone]
    assert len(set(first)) == 3
    before = engine.stats().cached_tokens
    engine.generate(requests[:1])
    assert engine.stats().cached_tokens > before
