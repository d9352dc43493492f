"""The kinds of rows, how a data set lays its rows out, and reading text from columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from npukit.llm.chat.render import Turn
from npukit.llm.config.options import Format
from npukit.llm.medium import RowMedia

Conversation = list[Turn]


class BadRow(Exception):
    """The reason why a row cannot be used, worded to follow the row's position."""


class LeftOut(Exception):
    """A row that the options exclude."""


@dataclass(frozen=True)
class Rewriting:
    """Changes to every row of a data set: names for its placeholders, and text around its turns."""

    fill: dict[str, tuple[str, ...]] = field(default_factory=dict)
    question_suffix: str = ""
    answer_prefix: str = ""
    answer_until: str = ""

    def __call__(self, turns: Conversation, tag: Any) -> Conversation:
        """Apply them to a conversation; `tag` is the row's, as in swift/self-cognition.

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
        if turn["role"] != "assistant":
            return content
        return self.answer_prefix + (content.partition(self.answer_until)[0] if self.answer_until else content)


@dataclass(frozen=True)
class Layout:
    """The layout of a data set's rows; `columns` and `roles` map our names to its own."""

    format: Format = "auto"
    columns: dict[str, str] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    role_key: str | None = None
    content_key: str | None = None
    rewriting: Rewriting = Rewriting()
    question: str = ""  # built from columns
    min_label: float | None = None
    preset: str = ""  # see presets.py
    media_folder: str = ""  # prefix of media file names in columns
    keeps_empty: bool = False  # an empty answer is trained on, as in LLaMA-Factory and ms-swift


@dataclass(frozen=True)
class TextRow:
    """Plain text. A piece of a longer document that continues has no end token."""

    text: str
    ends: bool = True


@dataclass(frozen=True)
class Tokens:
    """A row that another tool tokenised: ids, and labels in which -100 does not count."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class Illustrated:
    """A conversation with media: each <image> in its turns stands for the next image, each <video> for the next."""

    turns: Conversation
    media: RowMedia

    def encode(self, encoder: Any) -> Any:
        """Its tokens including those of the media, or a BadRow."""
        return encoder.illustrated(self.turns, self.media)


class OwnRow(Protocol):
    """A row of a task's own kind, which encodes itself."""

    def encode(self, encoder: Any) -> Any:
        """A list of `Encoded`, or a BadRow."""


Row = Conversation | TextRow | Tokens | OwnRow


def string(row: dict[str, Any], name: str) -> str:
    """The text of a required column; numbers count as text."""
    value = row.get(name)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise BadRow(f"has no {name}" if name not in row else f"has an empty {name} ({kind_of(value)})")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadRow(f"has {kind_of(value)} as {name}, not text")
    if not value.strip():
        raise BadRow(f"has an empty {name}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRow(f"has invalid characters in {name} (half of a surrogate pair)") from None
    return value


def turn_text(row: dict[str, Any], name: str, layout: Layout) -> str:
    """The text of a turn, which may be empty if training on that is useful."""
    value = row.get(name)
    return value if layout.keeps_empty and isinstance(value, str) and not value.strip() else string(row, name)


def optional(row: dict[str, Any], name: str, keeps_spaces: bool = False) -> str:
    """The text of an optional column."""
    value = row.get(name)
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return ""
    if keeps_spaces and isinstance(value, str) and not value.strip():
        return value
    return string(row, name) if not isinstance(value, str) or value.strip() else ""


def listed(names: Iterable[Any]) -> str:
    """Column names for a message, whatever their types."""
    some = [" ".join(str(name).split())[:40] for name in islice(names, 12)]
    return ", ".join(some) or "none"


def kind_of(value: Any) -> str:
    """The kind of a value, for a message about it."""
    if value is None:
        return "null"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
