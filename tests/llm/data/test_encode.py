"""What the model sees and what counts."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from npukit.errors import NpukitError
from npukit.llm.chat.templates import Template, find_template
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.encode import SEPARATOR, Encoded, Encoder, kept_bytes, stored_bytes
from npukit.llm.data.row import BadRow, Conversation, TextRow
from npukit.llm.data.rows import inputs_and_labels, weights_of
from npukit.llm.data.tokenised import Rows
from npukit.llm.tasks.task import named


def talk(*contents: str, system: str | None = None) -> Conversation:
    roles = ("user", "assistant")
    turns = [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]
    return [*([{"role": "system", "content": system}] if system else []), *turns]


def encoder(tokenizer: Any, task: str = "sft", template: str | None = None, **options: Any) -> Encoder:
    data = DataOptions(train=(Source(path="unused"),), **options)
    return Encoder(data, named(task), tokenizer, find_template(template, tokenizer))


def one(encoder: Encoder, row: Conversation | TextRow) -> Encoded:
    (result,) = encoder.encode([row])
    assert not isinstance(result, BadRow)
    (encoded,) = result
    return encoded


def words(tokenizer: Any, encoded: Encoded) -> tuple[str, str]:
    """All of a row as text, and what counts of it."""
    ids = [token if token >= 0 else ~token for token in encoded.tokens]
    return tokenizer.decode(ids), tokenizer.decode([token for token in encoded.tokens if token >= 0])


TURNS = talk("What is 1 + 1?", "Two.", "And 2 + 2?", "Four.")
WHOLE = (
    "<|im_start|>user\nWhat is 1 + 1?<|im_end|>\n<|im_start|>assistant\nTwo.<|im_end|>\n"
    "<|im_start|>user\nAnd 2 + 2?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n"
)


@pytest.mark.parametrize(
    ("options", "counted"),
    [
        ({}, "Two.<|im_end|>Four.<|im_end|>"),
        ({"last_answer_only": True}, "Four.<|im_end|>"),
        ({"train_on_prompt": True}, WHOLE),
    ],
)
def test_what_counts(tiny_tokenizer: Any, options: dict[str, Any], counted: str) -> None:
    assert words(tiny_tokenizer, one(encoder(tiny_tokenizer, **options), TURNS)) == (WHOLE, counted)


def test_tokens_are_those_of_the_tokenizer(tiny_tokenizer: Any) -> None:
    ids = tiny_tokenizer.apply_chat_template(TURNS)["input_ids"]
    tokens = one(encoder(tiny_tokenizer, train_on_prompt=True), TURNS).tokens
    assert tokens.tolist() == ids


def test_a_prompt_is_what_the_tokenizer_makes_of_the_text_before_the_answer(tiny_tokenizer: Any) -> None:
    ids = tiny_tokenizer.apply_chat_template(TURNS[:3], add_generation_prompt=True)["input_ids"]
    for cutoff in (len(ids), len(ids) - 1):
        prompt = encoder(tiny_tokenizer, "grpo", cutoff=cutoff).prompt(TURNS[:3])
        assert isinstance(prompt, BadRow) if cutoff < len(ids) else (~prompt.tokens).tolist() == ids
    shorter = encoder(tiny_tokenizer, "grpo", cutoff=len(ids) - 1, too_long="cut_start").prompt(TURNS[:3])
    assert isinstance(shorter, Encoded) and shorter.was_cut and (~shorter.tokens).tolist()[-8:] == ids[-8:]


def test_a_prompt_needs_no_answer_that_the_tokenizer_knows() -> None:
    """A vocabulary of words, without one for what it does not know and without a mark for the end."""
    vocabulary = Tokenizer(models.WordLevel({"one": 0, "plus": 1}))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content + ' ' }}{% endfor %}"
    prompt = encoder(tokenizer, "grpo").prompt(talk("one plus one"))
    assert isinstance(prompt, Encoded) and (~prompt.tokens).tolist() == [0, 1, 0]


def test_the_system_message_is_for_rows_without_one(tiny_tokenizer: Any) -> None:
    wise = encoder(tiny_tokenizer, system="Be wise.")
    assert words(tiny_tokenizer, one(wise, talk("Hi", "Yo")))[0].startswith("<|im_start|>system\nBe wise.<|im_end|>")
    assert "Be wise" not in words(tiny_tokenizer, one(wise, talk("Hi", "Yo", system="Be short.")))[0]


text = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40).filter(
    lambda words: words.strip() and "<|" not in words
)


@settings(max_examples=60, deadline=None)
@given(st.lists(text, min_size=2, max_size=6).filter(lambda contents: len(contents) % 2 == 0))
@pytest.mark.parametrize("template", [None, "chatml", "llama3", "vicuna", "alpaca"])
def test_any_words_survive_and_answers_alone_count(tiny_tokenizer: Any, template: str, contents: list[str]) -> None:
    """The concatenation is the rendering; what counts is the answers, whatever is said in them."""
    encode = encoder(tiny_tokenizer, template=template)
    whole, counted = words(tiny_tokenizer, one(encode, talk(*contents)))
    assert all(content.strip() in whole for content in contents)
    counted = counted.replace("<|im_end|>", "").replace("<|eot_id|>", "")
    assert "".join(counted.split()) == "".join("".join(contents[1::2]).split())


def test_special_tokens_that_swallow_white_space(tiny_tokenizer: Any) -> None:
    """As Phi-3's do: the line break after <|end|> belongs to its token, which counts, and that before an answer not."""
    from tokenizers import AddedToken

    phi = copy.deepcopy(tiny_tokenizer)
    special = [AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in ("user", "assistant", "end")]
    phi.add_special_tokens({"additional_special_tokens": special})
    assert words(phi, one(encoder(phi, template="phi"), TURNS))[1] == "Two.<|end|>Four.<|end|>"
    assert words(phi, one(encoder(phi, template="glm4"), TURNS[:2]))[1] == "Two.<|im_end|>"


def test_a_tokenizer_without_offsets_gives_the_same(tiny_tokenizer: Any) -> None:
    class Slow:
        is_fast = False

        def __getattr__(self, name: str) -> Any:
            return getattr(tiny_tokenizer, name)

    slow, fast = (one(encoder(tokenizer), TURNS) for tokenizer in (Slow(), tiny_tokenizer))
    assert slow.tokens.tolist() == fast.tokens.tolist()


def test_a_tokenizer_that_panics_is_told_in_a_sentence(tiny_tokenizer: Any) -> None:
    class PanicException(BaseException):  # as Rust's libraries raise it
        pass

    class Panics:
        is_fast = True
        no_padding = no_truncation = staticmethod(lambda: None)

        @property
        def backend_tokenizer(self) -> Any:
            return self

        def encode_batch(self, *_: Any, **__: Any) -> Any:
            raise PanicException

        def __getattr__(self, name: str) -> Any:
            return getattr(tiny_tokenizer, name)

    with pytest.raises(NpukitError):
        one(encoder(Panics()), TURNS)


def test_a_long_answer_loses_its_end(tiny_tokenizer: Any) -> None:
    row = one(encoder(tiny_tokenizer, cutoff=40), talk("Hi", "blue sky " * 50))
    whole, counted = words(tiny_tokenizer, row)
    assert row.was_cut and len(row.tokens) == 40
    assert whole.startswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nblue sky")
    assert "<|im_end|>" not in counted, "a cut answer has no end to learn"


def test_a_long_question_keeps_its_head_and_its_answer(tiny_tokenizer: Any) -> None:
    row = one(encoder(tiny_tokenizer, cutoff=60), talk("Begin " + "and so on " * 100 + "end", "Paris"))
    whole, counted = words(tiny_tokenizer, row)
    assert row.was_cut and len(row.tokens) == 60
    assert whole.startswith("<|im_start|>user\nBegin and so on") and counted == "Paris<|im_end|>"
    assert whole.endswith("end<|im_end|>\n<|im_start|>assistant\nParis<|im_end|>\n"[:-1])


def test_a_row_of_which_nothing_counts_is_bad(tiny_tokenizer: Any) -> None:
    (result,) = encoder(tiny_tokenizer, cutoff=1).encode([TURNS])
    assert isinstance(result, BadRow) and "no tokens to train on" in str(result)


def test_texts_end_and_long_ones_are_pieces(tiny_tokenizer: Any) -> None:
    pre = encoder(tiny_tokenizer, task="pt", cutoff=16)
    sentence = "The quick brown fox jumps over the lazy dog. " * 5
    (result,) = pre.encode([TextRow(sentence)])
    assert not isinstance(result, BadRow)
    assert [len(piece.tokens) for piece in result[:-1]] == [16] * (len(result) - 1)
    tokens = [token for piece in result for token in piece.tokens]
    assert tiny_tokenizer.decode(tokens) == sentence + "<|im_end|>" and min(tokens) >= 0
    (goes_on,) = pre.encode([TextRow("One plus one", ends=False)])
    assert not isinstance(goes_on, BadRow)
    assert goes_on[0].tokens[-1] != tiny_tokenizer.eos_token_id


def test_one_bad_row_leaves_the_others(tiny_tokenizer: Any) -> None:
    picky = copy.deepcopy(tiny_tokenizer)
    picky.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + (
        tiny_tokenizer.chat_template
    )
    bad, good = encoder(picky).encode([talk("Hi", "Yo", system="no"), talk("Hi", "Yo")])
    assert isinstance(bad, BadRow) and "no system" in str(bad)
    assert not isinstance(good, BadRow)


CALL = {"role": "call", "content": '{"name": "add", "arguments": {"a": 1}}'}
ADDED = [{"role": "tools", "content": '[{"name": "add"}]'}, *talk("1 + 1?"), CALL, {"role": "result", "content": "2"}]
ADDED += [{"role": "assistant", "content": "Two."}]
WRITES_TOOLS = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{% for message in messages %}"
    "{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}[{{ call.function | tojson }}]{% endfor %}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_tools_are_written_as_the_tokenizer_s_template_has_them(tiny_tokenizer: Any) -> None:
    data = DataOptions(train=(Source(path="unused"),))
    encoded = one(Encoder(data, named("sft"), tiny_tokenizer, Template("own", WRITES_TOOLS)), ADDED)
    whole, counted = words(tiny_tokenizer, encoded)
    assert whole.startswith("add;user:1 + 1?<|im_end|>assistant:[")
    assert counted == '[{"name": "add", "arguments": {"a": 1}}]<|im_end|>Two.<|im_end|>'


def test_a_template_that_loses_calls_is_no_template_for_them(tiny_tokenizer: Any) -> None:
    (result,) = encoder(tiny_tokenizer).encode([ADDED])
    assert isinstance(result, BadRow)


def test_parts_of_answers_are_weighed(tiny_tokenizer: Any) -> None:
    options = {"tokens": "ms_swift", "tool_format": "react_en", "weigh": ["react"]}
    data = DataOptions(train=(Source(path="unused"),), **options)
    made = Encoder(data, named("sft"), tiny_tokenizer, find_template("chatml", tiny_tokenizer, "ms_swift"))
    row = ADDED[:1] + [{**turn, "content": turn["content"].replace("+", "and")} for turn in ADDED[1:]]
    tools = [{"role": "tools", "content": '[{"name": "add", "description": "adds", "parameters": {}}]'}]
    tokens = one(made, [*tools, *row[1:]]).tokens
    ids, labels = inputs_and_labels(tokens)
    weights = weights_of(tokens)
    assert tiny_tokenizer.decode(ids[(weights == 2) & (labels >= 0)]).startswith("Action: add")
    assert "Two." in tiny_tokenizer.decode(ids[(weights == 1) & (labels >= 0)])
    assert set(ids) <= set(range(len(tiny_tokenizer)))


def test_bytes_beside_tokens_are_no_tokens() -> None:
    tokens = np.array([3, ~5, SEPARATOR], dtype=np.int32)
    row = Encoded(np.concatenate([tokens, stored_bytes("{'solution': 'zzü'}".encode())]))
    assert Rows.of([row]).highest_token() == 5
    assert kept_bytes(row.tokens[3:]).decode() == "{'solution': 'zzü'}"
