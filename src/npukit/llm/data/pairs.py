"""Preference rows: two answers to a question, or one that is marked good or bad."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npukit.llm.data.layout import conversation, question_of
from npukit.llm.data.media import with_tags
from npukit.llm.data.row import BadRow, Conversation, Layout, listed
from npukit.llm.data.turns import check_order, turns_of
from npukit.llm.medium import RowMedia

if TYPE_CHECKING:
    from npukit.llm.data.encode import Encoded, Encoder

REJECTED = ("rejected", "rejected_response", "rejected_messages")
MARKS = ("kto_tag", "label")


@dataclass(frozen=True)
class Pair:
    """A question with a better and a worse answer. If an answer is only marked good or bad, the other one is None."""

    question: Conversation
    chosen: str | None
    rejected: str | None
    media: RowMedia = field(default_factory=RowMedia)

    def encode(self, encoder: Encoder) -> list[Encoded] | BadRow:
        """The better answer's tokens, a mark, and the worse one's; a missing answer has no tokens."""
        import numpy as np

        from npukit.llm.data.encode import SEPARATOR, Encoded

        answers = [answer for answer in (self.chosen, self.rejected) if answer is not None]
        encoded = encoder.illustrated_answers(self.question, answers, self.media)
        if isinstance(encoded, BadRow):
            return encoded
        halves, images = encoded
        nothing = [np.zeros(0, dtype=np.int32)]
        halves = nothing * (self.chosen is None) + halves + nothing * (self.rejected is None)
        was_cut = any(len(half) == encoder.data.cutoff for half in halves)
        mark = np.array([SEPARATOR], dtype=np.int32)
        return [Encoded(np.concatenate([halves[0], mark, halves[1]]), was_cut, images=images)]


def lay_out_pair(row: dict[str, Any], layout: Layout) -> Pair:
    """Two answers: chosen and rejected next to a question, or a conversation and its rejected ending.

    >>> lay_out_pair({"prompt": "Why?", "chosen": "Because.", "rejected": "No."}, Layout("messages")).rejected
    'No.'
    """
    row, media = with_tags(row)
    worse = next((name for name in REJECTED if row.get(name) is not None), None)
    if worse is None:
        raise BadRow(f"has no rejected answer; its columns are {listed(row)}")
    rejected = _last_answer(row[worse], layout)
    if "chosen" in row and not (isinstance(row["chosen"], list) and len(row["chosen"]) > 1):
        question = question_of(row, layout)
        return Pair(question, _last_answer(row["chosen"], layout), rejected, media)
    turns = turns_of(row["chosen"], layout) if "chosen" in row else conversation(row, layout)
    return Pair(turns[:-1], _answer(turns), rejected, media)


def lay_out_marked(row: dict[str, Any], layout: Layout) -> Pair:
    """A row with one answer that is marked good or bad."""
    row, media = with_tags(row)
    mark = next((name for name in MARKS if row.get(name) is not None), None)
    if mark is None or row[mark] not in (True, False, 0, 1):
        raise BadRow(f"has no label that is true or false; its columns are {listed(row)}")
    turns = conversation(row, layout)
    answer = _answer(turns)
    return Pair(turns[:-1], answer if row[mark] else None, None if row[mark] else answer, media)


def _last_answer(value: Any, layout: Layout) -> str:
    """The answer in a text, a turn, or a conversation that ends with it."""
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
