"""Templates by name, against what the models' publishers show of the same conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.chat.render import NotRendered, Renderer
from npukit.llm.chat.templates import Template, find_template, missing_tokens, names

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "An assistant"},
]
CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
    "<|im_start|>assistant\n{Hi there<|im_end|>}\n<|im_start|>user\nWho are you?<|im_end|>\n"
    "<|im_start|>assistant\n{An assistant<|im_end|>}\n"
)
# What counts stands in braces; <s> and </s> are the tokenizer's.
PUBLISHED = {
    "chatml": CHATML,
    "qwen": CHATML,
    "qwen2_5": CHATML,
    "qwen3": CHATML.replace("{", "{<think>\n\n</think>\n\n"),
    "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST]{ Hi there </s>}"
    "<s>[INST] Who are you? [/INST]{ An assistant </s>}",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{Hi there<|eot_id|>}"
    "<|start_header_id|>user<|end_header_id|>\n\nWho are you?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{An assistant<|eot_id|>}",
    "mistral": "<s>[INST] Be brief.\n\nHello[/INST]{ Hi there</s>}[INST] Who are you?[/INST]{ An assistant</s>}",
    "gemma": "<s><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n"
    "<start_of_turn>model\n{Hi there<end_of_turn>}\n<start_of_turn>user\nWho are you?<end_of_turn>\n"
    "<start_of_turn>model\n{An assistant<end_of_turn>}\n",
    "deepseek": "<s>Be brief.\n\nUser: Hello\n\nAssistant:{ Hi there</s>}User: Who are you?\n\n"
    "Assistant:{ An assistant</s>}",
    "deepseek3": "<s>Be brief.<｜User｜>Hello<｜Assistant｜>{Hi there<｜end▁of▁sentence｜>}<｜User｜>Who are you?"
    "<｜Assistant｜>{An assistant<｜end▁of▁sentence｜>}",
    "glm4": "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHello<|assistant|>{\nHi there<|user|>}\nWho are you?"
    "<|assistant|>{\nAn assistant</s>}",
    "phi": "<|system|>\nBe brief.<|end|>\n<|user|>\nHello<|end|>\n<|assistant|>\n{Hi there<|end|>}\n"
    "<|user|>\nWho are you?<|end|>\n<|assistant|>\n{An assistant<|end|>}\n",
    "paligemma": "<s>Be brief.Hello\n{Hi there</s>}Who are you?\n{An assistant</s>}",
    "alpaca": "<s>Be brief.\n\n### Instruction:\nHello\n\n### Response:\n{Hi there</s>}\n\n"
    "### Instruction:\nWho are you?\n\n### Response:\n{An assistant</s>}",
    "vicuna": "<s>Be brief. USER: Hello ASSISTANT:{ Hi there</s>}USER: Who are you? ASSISTANT:{ An assistant</s>}",
    "default": "<s>Be brief.\nHuman: Hello\nAssistant:{ Hi there</s>}\nHuman: Who are you?\n"
    "Assistant:{ An assistant</s>}\n",
}
WITHOUT_SYSTEM = {
    "qwen": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n",
    "qwen2_5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nHello<|im_end|>\n",
    "chatml": "<|im_start|>user\nHello<|im_end|>\n",
    "llama2": "<s>[INST] Hello [/INST]",
    "gemma": "<s><start_of_turn>user\nHello<end_of_turn>\n",
    "mistral": "<s>[INST] Hello[/INST]",
    "alpaca": "<s>Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\nHello\n\n",
    "vicuna": "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. USER: Hello ",
}
STOPS = ("<|user|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<｜end▁of▁sentence｜>")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def shown(renderer: Renderer, turns: list[dict[str, str]]) -> str:
    """The rendering with braces around what counts."""
    rendered = renderer.render(turns)
    text = rendered.text
    for start, end in reversed(rendered.answers):
        text = f"{text[:start]}{{{text[start:end]}}}{text[end:]}"
    return text


def test_every_template_is_compared() -> None:
    assert names() == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rendering_is_the_published_one(name: str) -> None:
    assert shown(Renderer(find_template(name), SPECIAL, STOPS), TURNS) == PUBLISHED[name]


@pytest.mark.parametrize("name", WITHOUT_SYSTEM)
def test_rendering_without_a_system_message(name: str) -> None:
    assert Renderer(find_template(name), SPECIAL, STOPS).render(TURNS[1:2]).text == WITHOUT_SYSTEM[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_prompt_of_inference_is_what_comes_before_each_answer(name: str) -> None:
    """What comes before an answer in training is the prompt that transformers makes when it is asked for."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered = Renderer(find_template(name), SPECIAL, STOPS).render(TURNS)
    for turns, (start, _) in zip((TURNS[:2], TURNS[:4]), rendered.answers, strict=True):
        prompt = render_jinja_template(
            [turns], chat_template=find_template(name).text, add_generation_prompt=True, **SPECIAL
        )[0][0]
        assert rendered.text[:start] == prompt


def test_paligemma_has_its_images_before_the_text() -> None:
    """As its processor writes them."""
    turns = [{"role": "user", "content": "<image><image>Who?"}, {"role": "assistant", "content": "Me!"}]
    assert shown(Renderer(find_template("paligemma"), SPECIAL), turns) == "<image><image><s>Who?\n{Me!</s>}"


def test_an_answer_with_reasoning_keeps_it() -> None:
    turns = [TURNS[1], {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nHi"}]
    text = shown(Renderer(find_template("qwen3"), SPECIAL, STOPS), turns)
    assert text.endswith("<|im_start|>assistant\n{<think>\nA greeting.\n</think>\n\nHi<|im_end|>}\n")


def test_a_template_of_another_version_is_not_proposed() -> None:
    with pytest.raises(NpukitError, match="did you mean llama3"):
        find_template("lama3")
    with pytest.raises(NpukitError, match="there are alpaca, "):
        find_template("qwen9_5_nothink")


def test_answers_are_found_without_the_mark_too() -> None:
    """The same spans for a template with {% generation %} and for its text without it."""
    for name in ("chatml", "llama3", "gemma", "phi", "vicuna"):
        marked = find_template(name)
        text = marked.text.replace("{%- generation %}", "{%- if true %}").replace("{% endgeneration %}", "{% endif %}")
        assert shown(Renderer(Template("bare", text), SPECIAL, STOPS), TURNS) == PUBLISHED[name]


def test_an_answer_that_is_rewritten_later_does_not_count() -> None:
    """As reasoning models' templates do: only the last answer keeps its thoughts."""
    text = (
        "{% for m in messages %}{% if m.role == 'user' %}Q {{ m.content }}\n"
        "{% else %}A {% if loop.last %}<think>none</think>{% endif %}{{ m.content }}</s>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}A {% endif %}"
    )
    renderer = Renderer(Template("thinker", text), SPECIAL)
    rendered = renderer.render(TURNS[1:])
    assert [rendered.text[start:end] for start, end in rendered.answers] == ["<think>none</think>An assistant</s>"]
    assert rendered.unmatched == 1


def test_a_header_that_nobody_asked_for_is_taken_away() -> None:
    """As the first template of Llama 3 writes it after the last answer too."""
    text = (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    )
    assert "<s>" + shown(Renderer(Template("old", text), SPECIAL, STOPS), TURNS) == PUBLISHED["llama3"]


def test_control_tokens_differ_as_a_whole() -> None:
    """As those of Phi-3.5, whose end of everything and header of a question begin alike."""
    text = (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
    )
    rendered = Renderer(Template("phi3.5", text), {"eos_token": "<|endoftext|>"}, STOPS).render(TURNS)
    answers = [rendered.text[start:end] for start, end in rendered.answers]
    assert answers == ["Hi there<|end|>", "An assistant<|end|>\n<|endoftext|>"]


def test_a_template_that_moves_messages_about_is_found_out() -> None:
    """As that of Mistral Nemo, which writes the system message before the last question, if nothing follows that."""
    text = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{% if loop.last and messages[0].role == 'system' %}"
        "{{ messages[0].content }} {% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %}"
        "{{ m.content }}</s>{% endif %}{% endfor %}"
    )
    renderer = Renderer(Template("mover", text), SPECIAL)
    assert shown(renderer, TURNS[1:]) == "[INST]Hello[/INST]{Hi there</s>}[INST]Who are you?[/INST]{An assistant</s>}"
    with pytest.raises(NotRendered, match="changed by the chat template"):
        renderer.render(TURNS)


def test_the_end_is_learnt_where_the_template_writes_none() -> None:
    text = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    rendered = Renderer(Template("endless", text), SPECIAL).render(TURNS[1:3])
    start, end = rendered.answers[-1]
    assert rendered.text[start:end] == "Hi there\n</s>"


def test_the_end_counts_where_it_stands_outside_of_the_mark() -> None:
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ eos_token }}\n{% endfor %}"
    assert shown(Renderer(Template("outside", text), SPECIAL), TURNS[2:3]) == "{Hi there</s>}\n"


def test_a_refused_conversation_is_a_bad_row() -> None:
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}x"
    with pytest.raises(NotRendered, match="no system here"):
        Renderer(Template("picky", text), SPECIAL).render(TURNS)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lama3", "did you mean llama3?"), ("qwen25", "did you mean qwen2"), ("xyz", "there are alpaca")],
)
def test_a_wrong_name_suggests_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(NpukitError) as error:
        find_template(name)
    assert meant in str(error.value)


def test_a_file_is_a_template_and_a_broken_one_says_where(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}\n{% endif %}")
    with pytest.raises(NpukitError, match=r"mine\.jinja, line 2"):
        Renderer(find_template(str(file)), SPECIAL)


def test_the_tokenizers_own_template_comes_first(tiny_tokenizer: Any) -> None:
    assert find_template(None, tiny_tokenizer).text == tiny_tokenizer.chat_template
    assert find_template(None, None).name == "default"


def test_control_tokens_that_a_tokenizer_lacks(tiny_tokenizer: Any) -> None:
    assert missing_tokens(find_template("chatml"), tiny_tokenizer) == []
    assert missing_tokens(find_template("llama3"), tiny_tokenizer) == [
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|start_header_id|>",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "{% macro again(n) %}{{ again(n + 1) }}{% endmacro %}{{ again(0) }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ range(10 ** 9) | list }}",
        "{{ messages | map(attribute='nothing') | sum }}",
    ],
)
def test_however_a_template_fails_it_is_a_bad_row(text: str) -> None:
    with pytest.raises(NotRendered):
        Renderer(Template("failing", text), SPECIAL).render(TURNS)
