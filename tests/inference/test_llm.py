"""The engine as a library says what transformers' own generate says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.inference import LLM, EngineOptions, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=10)
HI = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def llm(tiny_qwen2: Path) -> LLM:
    return LLM(str(tiny_qwen2), EngineOptions(max_num_seqs=4))


def expected(llm: LLM, folder: Path, ids: list[int]) -> str:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    made = model.generate(torch.tensor([ids]), max_new_tokens=10, do_sample=False, pad_token_id=0)[0, len(ids) :]
    return str(llm.tokenizer.decode(made, skip_special_tokens=True))


def test_texts_are_continued_in_one_batch(llm: LLM, tiny_qwen2: Path) -> None:
    texts = ["The capital of", "One plus one is two"]
    answers = llm.generate(texts, GREEDY)
    assert [answer.text for answer in answers] == [
        expected(llm, tiny_qwen2, llm.tokenizer.encode(text)) for text in texts
    ]
    assert all(len(answer.token_ids) == 10 and answer.finish_reason == "length" for answer in answers)
    assert llm.generate(texts[0], GREEDY)[0] == answers[0]


def test_conversations_whole_and_streamed(llm: LLM, tiny_qwen2: Path) -> None:
    ids = llm.tokenizer.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)
    whole = llm.chat(HI, GREEDY)
    assert whole.text == expected(llm, tiny_qwen2, ids) == "".join(llm.stream(HI, GREEDY))
    assert list(whole.prompt_token_ids) == ids


def test_a_stop_string_ends_the_text(llm: LLM) -> None:
    text = llm.generate("The capital of", GREEDY)[0].text
    stopped = llm.generate("The capital of", GREEDY, stop=[text[3:6]])[0]
    assert (stopped.text, stopped.finish_reason) == (text[: text.index(text[3:6])], "stop")


def test_who_leaves_a_stream_ends_it(llm: LLM) -> None:
    stream: Any = llm.stream("The capital of", SamplingParams(max_tokens=1000))
    next(stream)
    stream.close()
    assert llm.engine.is_idle and llm.generate("The", GREEDY)


def test_mistakes_are_one_sentence(llm: LLM) -> None:
    with pytest.raises(NpukitError):
        llm.generate(["The", "x" * 100_000], GREEDY)
    with pytest.raises(NpukitError):
        llm.chat([{"role": "nobody", "content": "Hi"}])
    assert llm.engine.is_idle
