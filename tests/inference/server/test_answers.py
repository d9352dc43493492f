"""What a model writes as one text reaches the client taken apart: reasoning, content, calls of tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

CALLS = (
    "<think>They ask for two cities.</think>Let me look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASK: dict[str, Any] = {"model": "first", "messages": [{"role": "user", "content": "Is it warm?"}]}


@pytest.fixture(scope="module")
def client(scripted: Any, template: Path) -> openai.OpenAI:
    url = scripted.serve(scripted.engine(lambda *_: CALLS), template)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_whole_and_streamed_answers_are_taken_apart_alike(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ASK, tools=[TOOL]).choices[0]
    with client.chat.completions.stream(**ASK, tools=[TOOL]) as events:
        streamed = events.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
        calls = [
            json.loads(call.function.arguments) for call in choice.message.tool_calls or () if call.type == "function"
        ]
        assert calls == [{"city": "Köln"}, {"city": "Rome"}]
    assert whole.message.reasoning_content == "They ask for two cities."


def test_reasoning_is_streamed_before_what_is_said(client: openai.OpenAI) -> None:
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**ASK, tools=[TOOL], stream=True)]
    kinds = [
        next((kind for kind in ("reasoning_content", "tool_calls", "content") if getattr(delta, kind, None)), "")
        for delta in deltas
    ]
    order = [kind for at, kind in enumerate(kinds) if kind and (not at or kinds[at - 1] != kind)]
    assert order == ["reasoning_content", "content", "tool_calls"]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "They ask for two cities."
    hidden = client.chat.completions.create(**ASK, extra_body={"include_reasoning": False}).choices[0].message
    assert not hasattr(hidden, "reasoning_content")


def test_tools_that_were_not_offered_are_text(client: openai.OpenAI) -> None:
    for ask in (ASK, {**ASK, "tools": [TOOL], "tool_choice": "none"}):
        choice = client.chat.completions.create(**ask).choices[0]
        assert choice.finish_reason == "stop" and "<tool_call>" in (choice.message.content or "")


def test_responses_have_an_item_for_each_part(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
    whole = client.responses.create(model="first", input="Is it warm?", tools=[tool])
    with client.responses.stream(model="first", input="Is it warm?", tools=[tool]) as events:
        streamed = events.get_final_response()
    for answer in (whole, streamed):
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
        assert answer.output_text == "Let me look." and answer.status == "completed"
