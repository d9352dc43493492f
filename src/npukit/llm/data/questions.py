"""The question of a row, and its expected answer if it has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npukit.llm.chat.messages import as_messages
from npukit.llm.chat.peers.data import BadTurns
from npukit.llm.data.files import RawRow
from npukit.llm.data.layout import ANSWERS, QUESTIONS, lay_out, recognise, renamed
from npukit.llm.data.media import spread, with_sources
from npukit.llm.data.row import BadRow, Illustrated, Layout, TextRow, listed
from npukit.llm.medium import MediaItem

STAND_IN = "?"
ANSWERING = ("assistant", "gpt", "chatgpt", "bot", "function_call", "tool_call")
TURNS = ("messages", "conversations", "conversation")


@dataclass(frozen=True)
class Question:
    """A conversation that waits for an answer, or plain text to continue; `reference` is the expected answer.

    If there are tools, an expected call is JSON text, as in the rows that such a model is trained on.
    """

    messages: list[dict[str, Any]] | None
    text: str = ""
    reference: str | None = None
    tools: list[Any] | None = None
    media: tuple[MediaItem, ...] = ()  # referred to by tags such as <image> in the messages

    @property
    def with_media(self) -> list[dict[str, Any]]:
        """The messages with images and videos as content parts, as in OpenAI's API."""
        return with_sources(self.messages or [], self.media) if self.media else self.messages or []


def question_of(record: RawRow, layout: Layout) -> Question:
    """The question of a record; raises BadRow.

    >>> question_of(RawRow("rows.jsonl", 1, {"prompt": "Hi"}), Layout()).messages
    [{'role': 'user', 'content': 'Hi'}]
    """
    if record.problem:
        raise BadRow(record.problem)
    row, is_answered = _with_answer(renamed(record.value, layout))
    format, columns = layout.format, layout.columns
    if format == "auto":
        recognised = recognise(row)
        if recognised is None:
            raise BadRow(f"has no messages, prompt, instruction or text; its columns are {listed(row)}")
        format, columns = recognised[0], recognised[1] | layout.columns
    layout = Layout(format, columns, layout.roles, layout.role_key, layout.content_key)
    laid = lay_out(renamed(row, layout), layout)
    if isinstance(laid, TextRow):
        return Question(None, laid.text)
    media: list[MediaItem] = []
    if isinstance(laid, Illustrated):
        laid, media = spread(laid.turns, laid.media, "npukit")
    assert isinstance(laid, list)  # sft has no pairs
    try:
        tools, messages = as_messages(laid[:-1])
    except BadTurns as error:
        raise BadRow(str(error)) from error
    return Question(messages, reference=laid[-1]["content"] if is_answered else None, tools=tools, media=tuple(media))


def _with_answer(row: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Add a placeholder answer if the row has none, because layouts require one."""
    column = next((name for name in TURNS if isinstance(row.get(name), list) and row[name]), None)
    if column:
        last = row[column][-1]
        keys = ("from", "value") if isinstance(last, dict) and "from" in last else ("role", "content")
        if isinstance(last, dict) and last.get(keys[0]) in ANSWERING:
            return row, True
        answer = {keys[0]: "gpt" if keys[0] == "from" else "assistant", keys[1]: STAND_IN}
        return {**row, column: [*row[column], answer]}, False
    if any(str(row.get(name) or "").strip() for name in ANSWERS):
        return row, True
    if "instruction" in row or any(name in row for name in QUESTIONS):
        filled = next((name for name in ANSWERS if name in row), "output" if "instruction" in row else "completion")
        return {**row, filled: STAND_IN}, False
    return row, False
