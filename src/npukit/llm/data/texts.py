"""Rows of models that classify, embed or rank: texts, and what is known of them."""

from __future__ import annotations

import math
from typing import Any

from npukit.llm.data.layout import are_numbers, question_of, refuse_media
from npukit.llm.data.row import BadRow, Conversation, Layout, LeftOut, Texts, listed


def lay_out_texts(row: dict[str, Any], layout: Layout, task: str) -> Texts:
    """The texts of a row (with our names of the columns); raises BadRow, or LeftOut for one that is not wanted.

    >>> lay_out_texts({"query": "Well made.", "label": 1}, Layout("messages"), "classify").labels
    (1.0,)
    """
    refuse_media(row)
    if "input_ids" in row:
        return _tokenised(row, task)
    question = question_of(row, layout)
    if task == "classify":
        return Texts((question,), _labels(row))
    fitting, others = _documents(row, "positive", task), _documents(row, "negative", task)
    if not fitting:
        raise BadRow(f"has no positive; its columns are {listed(row)}")
    if task == "rerank":
        pairs = tuple([*question, *document] for document in (*fitting, *others))
        return Texts(pairs, (1.0,) * len(fitting) + (0.0,) * len(others))
    label = _labels(row)[0] if row.get("label") is not None else 1.0
    if layout.min_label is not None and label < layout.min_label:
        raise LeftOut
    return Texts((question, fitting[0], *others), (label, *[0.0] * len(others)))


def _labels(row: dict[str, Any]) -> tuple[float, ...]:
    """A class, a number, or several of either."""
    label = row.get("label")
    several: list[Any] = label if isinstance(label, list) else [label]
    try:
        found = tuple(float(each) + 0.0 for each in several)
    except (TypeError, ValueError):
        raise BadRow(f"has no label that is a number; its columns are {listed(row)}") from None
    if not all(map(math.isfinite, found)):
        raise BadRow("has a label that is not finite")
    return found


def _tokenised(row: dict[str, Any], task: str) -> Texts:
    """A row of a data set that ms-swift tokenised (cached_dataset)."""
    several = row["input_ids"] if task == "rerank" else [row["input_ids"]]
    if task == "embed" or not isinstance(several, list) or not several or not all(map(are_numbers, several)):
        raise BadRow(f"has input_ids that task {task} cannot read")
    labels = _labels({"label": row.get("labels")})
    if task == "rerank" and len(labels) != len(several):
        raise BadRow(f"has {len(labels)} labels for {len(several)} texts")
    return Texts(tuple(several), labels)


def _documents(row: dict[str, Any], name: str, task: str) -> list[Conversation]:
    """Texts beside the question: strings, or conversations as ms-swift has them in positive_messages."""
    found = row.get(f"{name}_messages", row.get(name))
    if found is None:
        return []
    several = found if isinstance(found, list) else [found]
    if several and isinstance(several[0], dict):
        several = [several]
    role = "assistant" if task == "rerank" else "user"
    return [_document(each, name, role) for each in several]


def _document(value: Any, name: str, role: str) -> Conversation:
    turns = [{"role": role, "content": value}] if isinstance(value, str) else value
    if not isinstance(turns, list) or not turns or not all(_is_turn(turn) for turn in turns):
        raise BadRow(f"has a {name} that is neither text nor a conversation")
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
