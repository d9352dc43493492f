"""Answers are taken apart the same way however they arrive."""

from __future__ import annotations

import json

import pytest

from npukit.llm.chat.answer import (
    SYNTAXES,
    Answer,
    AnswerParser,
    Content,
    Reasoning,
    Syntax,
    ToolCall,
    syntax_of,
    whole,
)

HERMES, MISTRAL, LLAMA3 = SYNTAXES
CALL = '{"name": "weather", "arguments": {"city": "Zürich"}}'
WEATHER = ToolCall("weather", '{"city": "Zürich"}')
CASES = {
    "only content": (None, "  Well:\n yes.  ", Answer("  Well:\n yes.  ")),
    "reasoning first": (None, "<think>\nHm </b>.\n</think>\n\nYes", Answer("Yes", "Hm </b>.")),
    "reasoning without an end": (None, "<think>Hm", Answer("", "Hm")),
    "a mark in the middle is text": (None, "It writes <think> there", Answer("It writes <think> there")),
    "nothing": (HERMES, "", Answer("")),
    "hermes": (
        HERMES,
        f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>",
        Answer("Let me see.", calls=(WEATHER, WEATHER)),
    ),
    "hermes after reasoning": (
        HERMES,
        f"<think>Hm</think>\n\n<tool_call>\n{CALL}\n</tool_call>",
        Answer("", "Hm", (WEATHER,)),
    ),
    "a call that was cut off": (HERMES, '<tool_call>{"name": "wea', Answer('<tool_call>{"name": "wea')),
    "a call that is none": (
        HERMES,
        "<tool_call>rain</tool_call> so",
        Answer("<tool_call>rain</tool_call> so"),
    ),
    "llama3": (
        LLAMA3,
        '{"name": "weather", "parameters": {"city": "Zürich"}}; ' + CALL,
        Answer("", calls=(WEATHER, WEATHER)),
    ),
    "llama3 with its tag": (LLAMA3, f"<|python_tag|>{CALL}", Answer("", calls=(WEATHER,))),
    "llama3 answers in JSON": (LLAMA3, '{"city": "Zürich"}', Answer('{"city": "Zürich"}')),
    "mistral": (MISTRAL, f"[TOOL_CALLS] [{CALL}]", Answer("", calls=(WEATHER,))),
    "mistral with names": (
        MISTRAL,
        'Well.[TOOL_CALLS]weather[ARGS]{"city": "Zürich"}',
        Answer("Well.", calls=(WEATHER,)),
    ),
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("syntax", "text", "expected"), CASES.values(), ids=CASES)
def test_answers(syntax: Syntax | None, text: str, expected: Answer, size: int) -> None:
    parser = AnswerParser(thinks=True, syntax=syntax)
    parts = [part for at in range(0, len(text), size) for part in parser.feed(text[at : at + size])]
    answer = whole([*parts, *parser.end()])
    assert answer == expected
    assert all(json.loads(call.arguments) for call in answer.calls)


def test_reasoning_that_the_prompt_opened() -> None:
    parser = AnswerParser(thinks=True, syntax=None, is_thinking=True)
    assert [*parser.feed("Hm"), *parser.feed(".\n</think>\n\nYes"), *parser.end()] == [
        Reasoning("Hm"),
        Reasoning("."),
        Content("Yes"),
    ]


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    parser = AnswerParser(thinks=True, syntax=HERMES)
    assert parser.feed("Paris is") == [Content("Paris is")]
    assert parser.feed(" big <tool") == [Content(" big")], "what may be a call is held back"
    assert parser.feed("box>") == [Content(" <toolbox>")]


def test_a_template_tells_its_syntax() -> None:
    hermes = "{% if tools %}in <tool_call></tool_call> tags{% endif %}"
    assert syntax_of(hermes) is HERMES
    assert syntax_of(hermes + "<function=name>") is None, "calls in XML are another syntax"
    assert syntax_of("{{ tools }}[TOOL_CALLS]") is MISTRAL
    assert syntax_of('{{ tools }}{"name": x, "parameters": y}<|eot_id|>') is LLAMA3
    assert syntax_of("<|im_start|>") is None
