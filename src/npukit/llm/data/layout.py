"""What a row means: each known layout becomes a conversation (turns of system, user, assistant) or plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from npukit.llm.chat.render import Turn
from npukit.llm.config.options import Format

Conversation = list[Turn]

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
}
FUNCTION_ROLES = {"function_call", "observation", "function", "tool", "tool_call", "tool_response"}
MEDIA = ("images", "videos", "audios")
# Of these columns each layout needs all of one group.
NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "messages": (("messages",), ("conversations",), ("query", "response")),
    "sharegpt": (("conversations",), ("conversation",), ("messages",)),
    "alpaca": (("instruction", "output"), ("instruction",)),
    "prompt": (("prompt", "completion"),),
    "text": (("text",),),
    "tokens": (("input_ids", "labels"),),
}
# What people call a question and its answer, the likeliest first.
QUESTIONS = ("query", "prompt", "question", "input", "problem")
ANSWERS = ("response", "completion", "output", "answer", "solution")
QUESTION_AND_ANSWER = {
    "alpaca": ("instruction", "output"),
    "prompt": ("prompt", "completion"),
    "messages": ("query", "response"),
}
COLUMNS = frozenset(
    {"system", "input", "history", "positive", "negative", "label"}
    | {name for groups in NEEDED.values() for group in groups for name in group}
)


class BadRow(Exception):
    """Why a row cannot be used, in words that follow the row's place."""


class LeftOut(Exception):
    """A row that the options leave out."""


@dataclass(frozen=True)
class Rewriting:
    """What is written into every row of a data set: names for its placeholders, and text around its turns."""

    fill: dict[str, tuple[str, ...]] = field(default_factory=dict)
    question_suffix: str = ""
    answer_prefix: str = ""

    def __call__(self, turns: Conversation, tag: Any) -> Conversation:
        """The conversation with all of that; `tag` is the row's, as swift/self-cognition has one.

        >>> Rewriting({"NAME": ("小黄", "Huang")})([{"role": "assistant", "content": "I am {{NAME}}."}], "en")
        [{'role': 'assistant', 'content': 'I am Huang.'}]
        """
        return [{**turn, "content": self._content(turn, tag)} for turn in turns]

    def _content(self, turn: Turn, tag: Any) -> str:
        content = turn["content"]
        for name, texts in self.fill.items():
            content = content.replace(f"{{{{{name}}}}}", texts[0 if tag == "zh" else -1])
        if turn["role"] == "user":
            return content + self.question_suffix
        return self.answer_prefix + content if turn["role"] == "assistant" else content


@dataclass(frozen=True)
class Layout:
    """How the rows of a data set are laid out; `columns` and `roles` give its own names for ours."""

    format: Format = "auto"
    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    role_key: str | None = None
    content_key: str | None = None
    rewriting: Rewriting = Rewriting()
    question: str = ""  # made of columns
    min_label: float | None = None
    keeps_empty: bool = False  # an empty answer teaches to say nothing, as in LLaMA-Factory and ms-swift


@dataclass(frozen=True)
class Text:
    """Plain text; a piece of a longer document that goes on does not end."""

    text: str
    ends: bool = True


@dataclass(frozen=True)
class Pair:
    """A question with a better and a worse answer; of an answer that is only good or bad the other one is None."""

    question: Conversation
    chosen: str | None
    rejected: str | None


@dataclass(frozen=True)
class Texts:
    """Texts that belong together, and what is known of them: a class, a similarity, which of them fit."""

    texts: tuple[Conversation | list[int], ...]  # or a text that is tokenised already
    labels: tuple[float, ...]


@dataclass(frozen=True)
class Tokens:
    """A row that another tool tokenised: ids, and labels of which -100 does not count."""

    ids: list[int]
    labels: list[int]


Row = Conversation | Text | Pair | Texts | Tokens


def renamed(row: Any, layout: Layout) -> dict[str, Any]:
    """The row with our names of the columns."""
    if isinstance(row, str):
        return {"text": row}
    if not isinstance(row, dict):
        raise BadRow(f"is {_kind(row)}, not an object with columns")
    named = row | {ours: row[theirs] for ours, theirs in layout.columns.items() if theirs in row}
    return named | {"query": layout.question.format_map(_Named(row))} if layout.question else named


class _Named(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        raise BadRow(f"has no {name}; its columns are {listed(self)}")


def recognise(row: dict[str, Any]) -> tuple[Format, dict[str, str]] | None:
    """The layout that a row with these columns has, and the columns that it calls by other names."""
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


def refuse_media(row: dict[str, Any]) -> None:
    """Raise BadRow for a row with images and the like."""
    if media := next((name for name in MEDIA if row.get(name)), None):
        raise BadRow(f"has {media}; only text is supported")


def lay_out(row: dict[str, Any], layout: Layout, task: str) -> Row:
    """The conversation or text of a row (with our names of the columns); raises BadRow.

    >>> lay_out({"instruction": "Hi", "output": "Hello"}, Layout("alpaca"), "sft")
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    refuse_media(row)
    if not any(row.keys() >= set(group) for group in NEEDED[layout.format]):
        wanted = " and ".join(NEEDED[layout.format][0])
        raise BadRow(f"has no {wanted} ({layout.format} format); its columns are {listed(row)}")
    if layout.format == "tokens":
        return _tokens(row)
    if layout.format == "text":
        return Text(_string(row, "text"), row.get("ends") is not False)
    if task == "pt" and layout.format == "alpaca" and not row.get("output"):
        return Text(_string(row, "instruction"))
    turns = conversation(row, layout)
    check_order(turns)
    return layout.rewriting(turns, row.get("tag")) if layout.rewriting != Rewriting() else turns


def _tokens(row: dict[str, Any]) -> Tokens:
    ids, labels = row["input_ids"], row["labels"]
    if not (are_numbers(ids) and are_numbers(labels) and len(ids) == len(labels)):
        raise BadRow("has input_ids and labels that are not as many whole numbers each")
    if any(label not in (-100, token) for token, label in zip(ids, labels, strict=True)):
        raise BadRow("has labels that are neither -100 nor their own tokens")
    return Tokens(ids, labels)


def are_numbers(value: Any) -> bool:
    """Whether it is a list of token ids."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, int) for each in value)


def question_of(row: dict[str, Any], layout: Layout) -> Conversation:
    """The turns before the answers; the columns are those of any layout."""
    column = next((name for name in ("conversations", "messages", "prompt") if isinstance(row.get(name), list)), None)
    if column:
        turns = turns_of(row[column], layout)
    else:
        name = next((name for name in ("instruction", *QUESTIONS, "text", "sentence") if row.get(name)), None)
        if name is None:
            raise BadRow(f"has no question; its columns are {listed(row)}")
        more = _optional(row, "input", layout.keeps_empty) if name == "instruction" else ""
        turns = [
            *_history(row.get("history")),
            _turn("user", "\n".join(part for part in (_string(row, name), more) if part)),
        ]
    system = _optional(row, "system")
    return [_turn("system", system), *turns] if system and turns[0]["role"] != "system" else turns


def conversation(row: dict[str, Any], layout: Layout) -> Conversation:
    """The conversation of a row that has one, in any layout."""
    turns: Conversation = []
    column = next((name for name in ("messages", "conversations", "conversation") if name in row), None)
    if layout.format in ("messages", "sharegpt") and column:
        turns = turns_of(row[column], layout)
    elif layout.format == "prompt" and isinstance(row["prompt"], list):
        answer = row["completion"]
        answers = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
        turns = turns_of([*row["prompt"], *answers], layout)
    else:
        turns = _history(row.get("history"))
        asked, answered = QUESTION_AND_ANSWER[layout.format]
        more = _optional(row, "input", layout.keeps_empty) if layout.format == "alpaca" else ""
        parts = (_optional(row, asked, layout.keeps_empty), more)
        question = "\n".join(part for part in parts if part)
        if not question and not layout.keeps_empty:
            raise BadRow(f"has an empty {asked}")
        turns += [_turn("user", question), _turn("assistant", _said(row, answered, layout))]
    system = _optional(row, "system")
    if system and (not turns or turns[0]["role"] != "system"):
        turns.insert(0, _turn("system", system))
    return turns


def turns_of(messages: Any, layout: Layout) -> Conversation:
    """The turns of a list of messages, with our names of the roles."""
    if not isinstance(messages, list):
        raise BadRow(f"has {_kind(messages)} instead of a list of turns")
    if not messages:
        raise BadRow("has an empty conversation")
    turns = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise BadRow(f"has {_kind(message)} as turn {number}, not an object with role and content")
        role_key = layout.role_key or ("role" if "role" in message else "from")
        content_key = layout.content_key or ("content" if "content" in message else "value")
        role = message.get(role_key)
        if message.get("tool_calls") or role in FUNCTION_ROLES - layout.roles.keys():
            raise BadRow(f"uses function calls (turn {number}), which are not supported")
        known = ROLES | layout.roles
        if not isinstance(role, str) or role not in known:
            raise BadRow(f"has the role {role!r} in turn {number}; roles are {', '.join(sorted(known))}")
        for name in ("loss", "weight"):
            if known[role] == "assistant" and message.get(name) not in (None, True):
                raise BadRow(f"sets {name} for turn {number}, which is not supported")
        turns.append(_turn(known[role], _content(message, content_key, number, layout)))
    return turns


def _content(message: dict[str, Any], key: str, number: int, layout: Layout) -> str:
    parts = message.get(key)
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict) or "text" not in part:
            kind = part.get("type", "something else") if isinstance(part, dict) else _kind(part)
            raise BadRow(f"has {kind} in turn {number}; only text is supported")
    try:
        return (
            "".join(_string(part, "text") for part in parts) if isinstance(parts, list) else _said(message, key, layout)
        )
    except BadRow as error:
        raise BadRow(f"{error} in turn {number}") from None


def _history(history: Any) -> Conversation:
    if history is None or history == "":
        return []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRow("has a history that is not a list of [question, answer]")
    turns = []
    for question, answer in history:
        turns.append(_turn("user", _string({"question of the history": question}, "question of the history")))
        turns.append(_turn("assistant", _string({"answer of the history": answer}, "answer of the history")))
    return turns


def check_order(turns: Iterable[Turn]) -> None:
    """An optional system message, then questions and answers in turn, the last an answer."""
    roles = [turn["role"] for turn in turns]
    start = 1 if roles[:1] == ["system"] else 0
    if "assistant" not in roles:
        raise BadRow("has no answer (no assistant turn)")
    for number, role in enumerate(roles[start:]):
        expected = ("user", "assistant")[number % 2]
        if role != expected:
            raise BadRow(f"has roles in the wrong order: turn {number + start + 1} is {role}, not {expected}")
    if roles[-1] != "assistant":
        raise BadRow("ends with a question that has no answer")


def _turn(role: str, content: str) -> Turn:
    return {"role": role, "content": content}


def _string(row: dict[str, Any], name: str) -> str:
    """The text of a column that must have one; numbers count as text."""
    value = row.get(name)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise BadRow(f"has no {name}" if name not in row else f"has an empty {name} ({_kind(value)})")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadRow(f"has {_kind(value)} as {name}, not text")
    if not value.strip():
        raise BadRow(f"has an empty {name}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"has invalid characters in {name} (half of a surrogate pair)") from None
    return value


def _said(row: dict[str, Any], name: str, layout: Layout) -> str:
    """The text of a turn, which may be empty where that teaches something."""
    value = row.get(name)
    return value if layout.keeps_empty and isinstance(value, str) and not value.strip() else _string(row, name)


def _optional(row: dict[str, Any], name: str, keeps_spaces: bool = False) -> str:
    value = row.get(name)
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    if keeps_spaces and isinstance(value, str) and not value.strip():
        return value
    return _string(row, name) if not isinstance(value, str) or value.strip() else ""


def listed(names: Iterable[Any]) -> str:
    """Names of columns in a sentence, whatever they are."""
    some = [" ".join(str(name).split())[:40] for name in islice(names, 12)]
    return ", ".join(some) or "none"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
