"""Interpret rows: each known layout becomes a conversation (turns of system, user, assistant) or plain text."""

from __future__ import annotations

from typing import Any

from npukit.llm.config.options import Format
from npukit.llm.data.media import with_tags
from npukit.llm.data.presets import PRESETS
from npukit.llm.data.row import (
    BadRow,
    Conversation,
    Illustrated,
    Layout,
    Rewriting,
    TextRow,
    Tokens,
    kind_of,
    listed,
    optional,
    string,
    turn_text,
)
from npukit.llm.data.turns import check_order, history_of, tools_turn, turn, turns_of
from npukit.llm.medium import COLUMNS as MEDIA

# A layout needs all columns of one of these groups.
NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "messages": (("messages",), ("conversations",), ("query", "response")),
    "sharegpt": (("conversations",), ("conversation",), ("messages",)),
    "alpaca": (("instruction", "output"), ("instruction",)),
    "prompt": (("prompt", "completion"),),
    "text": (("text",),),
    "tokens": (("input_ids", "labels"),),
}
# Common column names for a question and its answer, the most likely first.
QUESTIONS = ("query", "prompt", "question", "input", "problem")
ANSWERS = ("response", "completion", "output", "answer", "solution")
QUESTION_AND_ANSWER = {
    "alpaca": ("instruction", "output"),
    "prompt": ("prompt", "completion"),
    "messages": ("query", "response"),
}
COLUMNS = frozenset(
    {"tools", "system", "images", "videos", "audios", "input", "history", "positive", "negative", "label"}
    | {name for groups in NEEDED.values() for group in groups for name in group}
)


def renamed(row: Any, layout: Layout) -> dict[str, Any]:
    """The row with our column names."""
    if isinstance(row, str):
        return {"text": row}
    if not isinstance(row, dict):
        raise BadRow(f"is {kind_of(row)}, not an object with columns")
    if layout.preset:
        row = _preset(row, layout.preset)
    # An alias is used only if the real column is missing.
    columns = {name: value for name, value in row.items() if layout.columns.get(name, name) in row}
    columns |= {ours: row[theirs] for ours, theirs in layout.columns.items() if theirs in row}
    if layout.media_folder:
        media = {column: columns[column] for column in MEDIA if isinstance(columns.get(column), str)}
        columns |= {column: f"{layout.media_folder}/{name}" for column, name in media.items()}
    return columns | {"query": layout.question.format_map(_Named(row))} if layout.question else columns


def _preset(row: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        return PRESETS[name].row(row)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise BadRow(f"is not one of {name} ({type(error).__name__}: {error}); its columns are {listed(row)}") from None


class _Named(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        raise BadRow(f"has no {name}; its columns are {listed(self)}")


def recognise(row: dict[str, Any]) -> tuple[Format, dict[str, str]] | None:
    """The layout of a row with these columns, and the columns that have other names in it."""
    recognised = _recognise(row)
    if recognised is None:
        return None
    renamed_media = {column: kind for column, kind in MEDIA.items() if kind in row and column not in row}
    return recognised[0], {**recognised[1], **renamed_media}


def _recognise(row: dict[str, Any]) -> tuple[Format, dict[str, str]] | None:
    if "messages" in row:
        return "messages", {}
    if "input_ids" in row:
        return "tokens", {}
    turns = row.get("conversations", row.get("conversation"))
    if isinstance(turns, list) and turns and isinstance(turns[0], dict):
        return ("messages" if "role" in turns[0] else "sharegpt"), {}
    question = next((name for name in QUESTIONS if name in row), None)
    answer = next((name for name in ANSWERS if name in row), None)
    if "instruction" in row:
        return "alpaca", {} if "output" in row or answer is None else {"output": answer}
    if question and answer:
        if (question, answer) == ("query", "response"):
            return "messages", {}
        return "prompt", {"prompt": question, "completion": answer}
    return ("text", {}) if "text" in row else None


def lay_out(
    row: dict[str, Any], layout: Layout, answer_is_text: bool = False
) -> Conversation | Illustrated | TextRow | Tokens:
    """The conversation or text of a row (with our column names); raises BadRow.

    With `answer_is_text`, an answer without a question is plain text, as in ms-swift's rows for pre-training.

    >>> lay_out({"instruction": "Hi", "output": "Hello"}, Layout("alpaca"))
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    row, media = with_tags(row)
    if not any(row.keys() >= set(group) for group in NEEDED[layout.format]):
        needed = " and ".join(NEEDED[layout.format][0])
        raise BadRow(f"has no {needed} ({layout.format} format); its columns are {listed(row)}")
    if layout.format == "tokens":
        return _tokens(row)
    if layout.format == "text":
        return TextRow(string(row, "text"), row.get("ends") is not False)
    turns = conversation(row, layout)
    if answer_is_text and [turn["role"] for turn in turns] == ["assistant"]:
        return TextRow(turns[0]["content"])
    check_order(turns)
    turns = layout.rewriting(turns, row.get("tag")) if layout.rewriting != Rewriting() else turns
    return Illustrated(turns, media) if media else turns


def _tokens(row: dict[str, Any]) -> Tokens:
    ids, labels = row["input_ids"], row["labels"]
    if not (are_numbers(ids) and are_numbers(labels) and len(ids) == len(labels)):
        raise BadRow("has input_ids and labels that are not as many whole numbers each")
    if any(label not in (-100, token) for token, label in zip(ids, labels, strict=True)):
        raise BadRow("has labels that are neither -100 nor their own tokens")
    return Tokens(ids, labels)


def are_numbers(value: Any) -> bool:
    """Whether it is a list of token ids."""
    return isinstance(value, list) and bool(value) and all(isinstance(token, int) for token in value)


def question_of(row: dict[str, Any], layout: Layout) -> Conversation:
    """The turns before the answers, from the columns of any layout."""
    column = next((name for name in ("conversations", "messages", "prompt") if isinstance(row.get(name), list)), None)
    if column:
        turns = turns_of(row[column], layout)
    else:
        name = next((name for name in ("instruction", *QUESTIONS, "text", "sentence") if row.get(name)), None)
        if name is None:
            raise BadRow(f"has no question; its columns are {listed(row)}")
        more = optional(row, "input", layout.keeps_empty) if name == "instruction" else ""
        turns = [
            *history_of(row.get("history")),
            turn("user", "\n".join(part for part in (string(row, name), more) if part)),
        ]
    return _with_system_and_tools(turns, row)


def conversation(row: dict[str, Any], layout: Layout) -> Conversation:
    """The conversation of a row, in any layout that has one."""
    turns: Conversation = []
    column = next((name for name in ("messages", "conversations", "conversation") if name in row), None)
    if layout.format in ("messages", "sharegpt") and column:
        turns = turns_of(row[column], layout)
    elif layout.format == "prompt" and isinstance(row["prompt"], list):
        answer = row["completion"]
        answers = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
        turns = turns_of([*row["prompt"], *answers], layout)
    else:
        turns = history_of(row.get("history"))
        asked, answered = QUESTION_AND_ANSWER[layout.format]
        more = optional(row, "input", layout.keeps_empty) if layout.format == "alpaca" else ""
        parts = (optional(row, asked, layout.keeps_empty), more)
        question = "\n".join(part for part in parts if part)
        if not question and not layout.keeps_empty:
            raise BadRow(f"has an empty {asked}")
        if layout.keeps_empty and isinstance(several := row.get(answered), list) and several:
            row = {**row, answered: several[0]}  # of several answers ms-swift takes the first
        turns += [turn("user", question), turn("assistant", turn_text(row, answered, layout))]
    return _with_system_and_tools(turns, row)


def _with_system_and_tools(turns: Conversation, row: dict[str, Any]) -> Conversation:
    system = optional(row, "system")
    if system and (not turns or turns[0]["role"] != "system"):
        turns = [turn("system", system), *turns]
    return [*tools_turn(row.get("tools")), *turns]
