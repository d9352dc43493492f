"""Rows of preferences: two answers to a question, or one that is marked good or bad."""

from __future__ import annotations

from typing import Any

from npukit.llm.data.layout import conversation, question_of, refuse_media
from npukit.llm.data.row import BadRow, Conversation, Layout, Pair, listed
from npukit.llm.data.turns import check_order, turns_of

REJECTED = ("rejected", "rejected_response", "rejected_messages")
MARKS = ("kto_tag", "label")


def lay_out_pair(row: dict[str, Any], layout: Layout, task: str) -> Pair:
    """The pair, or the marked answer, of a row (with our names of the columns); raises BadRow.

    >>> lay_out_pair({"prompt": "Why?", "chosen": "Because.", "rejected": "No."}, Layout("messages"), "dpo").rejected
    'No.'
    """
    refuse_media(row)
    return _marked(row, layout) if task == "kto" else _pair(row, layout)


def _pair(row: dict[str, Any], layout: Layout) -> Pair:
    """Two answers: chosen and rejected beside a question, or a conversation and what it should not end in."""
    worse = next((name for name in REJECTED if row.get(name) is not None), None)
    if worse is None:
        raise BadRow(f"has no rejected answer; its columns are {listed(row)}")
    rejected = _last_answer(row[worse], layout)
    if "chosen" in row and not (isinstance(row["chosen"], list) and len(row["chosen"]) > 1):
        question = question_of(row, layout)
        return Pair(question, _last_answer(row["chosen"], layout), rejected)
    turns = turns_of(row["chosen"], layout) if "chosen" in row else conversation(row, layout)
    return Pair(turns[:-1], _answer(turns), rejected)


def _marked(row: dict[str, Any], layout: Layout) -> Pair:
    """A row with one answer that is good or bad."""
    mark = next((name for name in MARKS if row.get(name) is not None), None)
    if mark is None or row[mark] not in (True, False, 0, 1):
        raise BadRow(f"has no label that is true or false; its columns are {listed(row)}")
    turns = conversation(row, layout)
    answer = _answer(turns)
    return Pair(turns[:-1], answer if row[mark] else None, None if row[mark] else answer)


def _last_answer(value: Any, layout: Layout) -> str:
    """Text, a turn, or a conversation that ends with the answer."""
    if isinstance(value, str):
        return value
    return _said_last(turns_of(value if isinstance(value, list) else [value], layout))


def _answer(turns: Conversation) -> str:
    check_order(turns)
    return _said_last(turns)


def _said_last(turns: Conversation) -> str:
    if turns[-1]["role"] != "assistant":
        raise BadRow("has an answer that is not the assistant's")
    return turns[-1]["content"]
