"""From messages to the token ids that a model was taught with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npukit.inference.loading import load
from npukit.llm.chat.chat import Chat, writes_alike
from npukit.llm.chat.messages import BadConversation, prepared
from npukit.llm.chat.templates import Template, find_template, names
from npukit.llm.config.use import Use

USER = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
# A template in the manner of Qwen3's: tools, reasoning that can be switched off.
QWEN3 = """
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call></tool_call>{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor -%}
<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% elif opens %}<think>
{% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def chat(tiny_tokenizer: Any) -> Chat:
    return Chat(tiny_tokenizer, Template("a Qwen3", QWEN3))


def test_a_conversation_becomes_ids(tiny_tokenizer: Any) -> None:
    chat = Chat(tiny_tokenizer, find_template(None, tiny_tokenizer))
    prompt = chat.prompt([USER])
    assert prompt.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.ids == chat.tokenizer(prompt.text)["input_ids"]
    assert chat.prompt([USER], add_generation_prompt=False).text == "<|im_start|>user\nHi<|im_end|>\n"


def test_a_final_message_can_be_continued(chat: Chat) -> None:
    begun = [USER, {"role": "assistant", "content": "Well, "}]
    assert chat.prompt(begun, continue_final_message=True).text.endswith("assistant\nWell, ")


def test_a_system_message_is_for_conversations_without_one(tiny_tokenizer: Any) -> None:
    chat = Chat(tiny_tokenizer, find_template("chatml"), system="Be brief.")
    assert "system\nBe brief." in chat.prompt([USER]).text
    assert "Be brief." not in chat.prompt([{"role": "system", "content": "Be long."}, USER]).text


@pytest.mark.parametrize(
    ("name", "stop"), [("chatml", "<|im_end|>"), ("default", "<|im_end|>"), ("glm4", "<|user|>"), ("phi", "<|end|>")]
)
def test_answers_stop_where_the_template_ends_them(name: str, stop: str, tiny_tokenizer: Any) -> None:
    import copy

    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_tokens(["<|user|>", "<|end|>", "<|assistant|>"], special_tokens=True)
    stop_ids = Chat(tokenizer, find_template(name), eos_ids=[5]).stop_ids
    assert stop_ids == {tokenizer.convert_tokens_to_ids(stop), tokenizer.eos_token_id, 5}


@pytest.mark.parametrize("name", names())
def test_every_template_takes_a_conversation(name: str, tiny_tokenizer: Any) -> None:
    chat = Chat(tiny_tokenizer, find_template(name))
    assert "Hi" in chat.prompt([USER]).text


@pytest.mark.parametrize("name", names())
def test_a_template_without_tools_has_them_described(name: str, tiny_tokenizer: Any) -> None:
    chat = Chat(tiny_tokenizer, find_template(name))
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "rain"}]
    first, later = chat.prompt([USER], tools=TOOLS), chat.prompt(turns, tools=TOOLS)
    assert '"weather"' in first.text and "Hi" in first.text
    assert '{"name": "weather", "arguments": {"city": "Ulm"}}' in later.text and "rain" in later.text
    parsed = chat.parse(first, 'So: <tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>')
    assert [(call.name, call.arguments) for call in parsed.calls] == [("weather", '{"city": "Bonn"}')]


def test_a_template_without_system_messages_has_tools_with_the_question(tiny_tokenizer: Any) -> None:
    import copy

    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    text = Chat(tokenizer, find_template(None, tokenizer)).prompt([USER], tools=TOOLS).text
    assert text.startswith("user: ") and '"weather"' in text and text.rstrip().endswith("Hi")


def test_the_models_own_end_tokens_count(tiny_qwen2: Path, tmp_path: Path) -> None:
    for file in tiny_qwen2.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert {7, 8} <= load(Use(model={"path": str(tmp_path)})).chat.stop_ids


def test_variables_of_the_template(chat: Chat) -> None:
    off = chat.prompt([USER], template_kwargs={"enable_thinking": False})
    assert off.text.endswith("</think>\n\n") and not off.is_thinking
    on = chat.prompt([USER], template_kwargs={"opens": True})
    assert on.is_thinking and chat.parse(on, "Hm</think>Yes").reasoning == "Hm"
    for taken in ("messages", "tools", "chat_template"):
        with pytest.raises(BadConversation):
            chat.prompt([USER], template_kwargs={taken: "x"})


def test_a_user_who_writes_a_mark_opens_no_reasoning(chat: Chat) -> None:
    assert not chat.prompt([{"role": "user", "content": "What is <think>?"}]).is_thinking


def test_tools_are_offered_and_calls_are_read(chat: Chat) -> None:
    answer = '<tool_call>{"name": "weather", "arguments": {"a": 1}}</tool_call>'
    asked = chat.prompt([USER], tools=TOOLS)
    assert '"weather"' in asked.text
    assert [call.name for call in chat.parse(asked, answer).calls] == ["weather"]
    assert chat.parse(chat.prompt([USER]), answer).content == answer, "no tools were offered"


def test_calls_and_their_results_go_back_to_the_model(chat: Chat) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = chat.prompt([*turns, {"role": "tool", "content": "rain", "tool_call_id": "1"}], tools=TOOLS).text
    assert '<tool_call>{"city": "Ulm"}</tool_call>' in text and "tool\nrain" in text


def test_parts_of_text_are_joined_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    made = prepared([{"role": "developer", "content": "c"}, {"role": "user", "content": parts}])
    assert made == [{"role": "system", "content": "c"}, {"role": "user", "content": "a\nb"}]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        ["Hi"],
        [{"role": "robot", "content": "Hi"}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
        [{"role": "assistant", "tool_calls": ["f"]}],
    ],
)
def test_malformed_messages_are_told(messages: Any) -> None:
    with pytest.raises(BadConversation):
        prepared(messages)


def test_what_a_template_refuses_is_told(tiny_tokenizer: Any) -> None:
    chat = Chat(tiny_tokenizer, Template("strict", "{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(BadConversation, match="roles must alternate"):
        chat.prompt([USER])
    assert chat.stop_ids == {tiny_tokenizer.eos_token_id}


def test_a_template_that_writes_alike_is_not_replaced(tiny_tokenizer: Any) -> None:
    assert writes_alike(tiny_tokenizer, find_template("chatml")), "the tokenizer's own is ChatML"
    assert not writes_alike(tiny_tokenizer, find_template("llama3"))
    assert not writes_alike(tiny_tokenizer, find_template("qwen")), "it has a system message of its own"
    tokenizer = type("Bare", (), {"chat_template": None})()
    assert not writes_alike(tokenizer, find_template("chatml"))
