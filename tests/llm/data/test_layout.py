"""Rows of every known layout mean the same conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from npukit.llm.data.layout import lay_out, recognise, renamed
from npukit.llm.data.row import BadRow, Layout, Rewriting, TextRow
from npukit.llm.tasks.task import named

QUESTION, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
SYSTEM = {"role": "system", "content": "Be brief."}
EARLIER = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHAREGPT = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]

ROWS: dict[str, tuple[dict[str, Any], list[dict[str, str]]]] = {
    "alpaca": ({"instruction": "Hi", "input": "", "output": "Hello"}, [QUESTION, ANSWER]),
    "alpaca with an input": (
        {"instruction": "Add", "input": "1, 2", "output": 3},
        [{"role": "user", "content": "Add\n1, 2"}, {"role": "assistant", "content": "3"}],
    ),
    "alpaca with everything": (
        {"instruction": "Hi", "output": "Hello", "system": "Be brief.", "history": [["q", "a"]]},
        [SYSTEM, *EARLIER, QUESTION, ANSWER],
    ),
    "alpaca with empty columns": (
        {"instruction": "Hi", "input": None, "output": "Hello", "system": float("nan"), "history": None},
        [QUESTION, ANSWER],
    ),
    "sharegpt": ({"conversations": SHAREGPT}, [QUESTION, ANSWER]),
    "sharegpt, system inside": (
        {"conversations": [{"from": "system", "value": "Be brief."}, *SHAREGPT]},
        [SYSTEM, QUESTION, ANSWER],
    ),
    "sharegpt, system beside": ({"conversations": SHAREGPT, "system": "Be brief."}, [SYSTEM, QUESTION, ANSWER]),
    "sharegpt, singular": ({"conversation": SHAREGPT}, [QUESTION, ANSWER]),
    "messages": ({"messages": [SYSTEM, QUESTION, ANSWER]}, [SYSTEM, QUESTION, ANSWER]),
    "messages in parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER]},
        [QUESTION, ANSWER],
    ),
    "messages called conversations": ({"conversations": [QUESTION, ANSWER]}, [QUESTION, ANSWER]),
    "query and response": (
        {"system": "Be brief.", "query": "Hi", "response": "Hello", "history": [["q", "a"]]},
        [SYSTEM, *EARLIER, QUESTION, ANSWER],
    ),
    "prompt": ({"prompt": "Hi", "completion": "Hello"}, [QUESTION, ANSWER]),
    "question and answer": ({"question": "Hi", "answer": "Hello"}, [QUESTION, ANSWER]),
    "input and output": ({"id": 1, "input": "Hi", "output": "Hello", "answer": "x"}, [QUESTION, ANSWER]),
    "instruction and response": ({"instruction": "Hi", "response": "Hello"}, [QUESTION, ANSWER]),
    "prompt of turns": ({"prompt": [SYSTEM, QUESTION], "completion": [ANSWER]}, [SYSTEM, QUESTION, ANSWER]),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_row_is_recognised_and_understood(case: str) -> None:
    row, expected = ROWS[case]
    recognised = recognise(row)
    assert recognised
    layout = Layout(*recognised)
    assert lay_out(renamed(row, layout), layout) == expected


def test_other_names_of_columns_and_roles() -> None:
    layout = Layout("alpaca", {"instruction": "frage", "output": "antwort"})
    assert lay_out(renamed({"frage": "Hi", "antwort": "Hello"}, layout), layout) == [QUESTION, ANSWER]
    layout = Layout("sharegpt", {"conversations": "talk"}, {"Q": "user", "A": "assistant"}, "who", "what")
    row = {"talk": [{"who": "Q", "what": "Hi"}, {"who": "A", "what": "Hello"}]}
    assert lay_out(renamed(row, layout), layout) == [QUESTION, ANSWER]


def test_text() -> None:
    assert named("pt").row(renamed("Once", Layout("text")), Layout("text")) == TextRow("Once")
    assert named("pt").row({"instruction": "Once"}, Layout("alpaca")) == TextRow("Once"), "as c4 in dataset_info.json"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": "Hi", "output": True}, "a boolean as output"),
        ({"instruction": " ", "output": "x"}, "empty instruction"),
        ({"instruction": "Hi", "output": "x", "history": "no"}, "not a list of"),
        ({"instruction": "Hi", "output": "x", "history": [["q", None]]}, "empty answer of the history"),
        ({"prompt": "Hi", "completion": "x"}, "has no instruction and output (alpaca format); its columns are prompt"),
    ],
)
def test_why_a_row_is_bad(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow) as error:
        lay_out(row, Layout("alpaca"))
    assert reason in str(error.value)


def test_an_answer_alone_is_text_where_all_of_it_counts() -> None:
    """As ms-swift has rows for pre-training."""
    row, layout = {"messages": [{"role": "assistant", "content": "The sky."}]}, Layout("messages")
    assert named("pt").row(row, layout) == TextRow("The sky.")
    with pytest.raises(BadRow):
        lay_out(row, layout)


def test_an_answer_that_is_not_to_count_is_not_trained_on() -> None:
    turns = [{"role": "user", "content": "Hi", "loss": False}, {"role": "assistant", "content": "x", "loss": True}]
    assert lay_out({"messages": turns}, Layout("messages"))[-1] == {"role": "assistant", "content": "x"}
    with pytest.raises(BadRow, match="loss for turn 2"):
        lay_out({"messages": [turns[0], {**turns[1], "loss": False}]}, Layout("messages"))


def test_placeholders_are_filled_by_the_row_s_language() -> None:
    names = {"NAME": ("小黄", "Huang"), "AUTHOR": ("me",)}
    rewriting = Rewriting(names, question_suffix=" /no_think", answer_until="&&")
    rows = [
        {"query": "Who?", "response": "{{NAME}} by {{AUTHOR}}", "tag": "zh"},
        {"query": "Who?", "response": "{{NAME}} by {{AUTHOR}}&&or not", "tag": "en"},
    ]
    turns = [lay_out(row, Layout("messages", rewriting=rewriting)) for row in rows]
    assert [turn[1]["content"] for turn in turns] == ["小黄 by me", "Huang by me"]
    assert turns[0][0]["content"] == "Who? /no_think"


CALL = {"name": "add", "arguments": {"a": 1}}
SHARED = [
    {"from": "human", "value": "1 + 1?"},
    {"from": "function_call", "value": json.dumps(CALL)},
    {"from": "observation", "value": "2"},
    {"from": "gpt", "value": "Two."},
]


def roles(row: dict[str, Any], layout: Layout) -> list[str]:
    return [turn["role"] for turn in lay_out(renamed(row, layout), layout)]


def test_tools_calls_and_results_are_turns_of_their_own() -> None:
    row = {"conversations": SHARED, "tools": "[]", "system": "Be brief."}
    assert roles(row, Layout("sharegpt")) == ["tools", "system", "user", "call", "result", "assistant"]
    assert roles(row, Layout("sharegpt", {"tools": ""}))[0] == "system", "dataset_info.json does not name it"


def test_calls_as_openai_has_them() -> None:
    calls = [{"type": "function", "function": {"name": "add", "arguments": "{}"}}] * 2
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "So", "tool_calls": calls[:1]},
    ]
    wanted = ["tools", "user", "call", "call", "result", "assistant", "call"]
    assert roles({"messages": messages, "tools": [CALL]}, Layout("messages")) == wanted


@pytest.mark.parametrize("broken", [SHARED[:3], [SHARED[0], SHARED[2], SHARED[3]], [{**SHARED[0], "tool_calls": [{}]}]])
def test_calls_that_cannot_be_are_refused(broken: list[Any]) -> None:
    with pytest.raises(BadRow):
        lay_out({"conversations": broken}, Layout("sharegpt"))


def test_a_column_that_is_said_to_be_another_is_not_read_under_its_own_name() -> None:
    layout = Layout("alpaca", {"instruction": "question", "output": "answer"})
    with pytest.raises(BadRow):
        lay_out(renamed({"instruction": "Hi", "output": "Hello"}, layout), layout)
    assert renamed({"question": "Hi", "answer": "Hello"}, layout)["output"] == "Hello"
