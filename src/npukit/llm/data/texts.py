"""Rows for models that classify, embed or rank: texts and their labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npukit.llm.data.layout import are_numbers
from npukit.llm.data.row import BadRow, Conversation, listed
from npukit.llm.medium import RowMedia

if TYPE_CHECKING:
    from npukit.llm.data.encode import Encoded, Encoder
    from npukit.llm.images.images import RowImage


@dataclass(frozen=True)
class Texts:
    """Texts that belong together, and what is known about them: a class, a similarity, which ones match."""

    texts: tuple[Conversation | list[int], ...]  # or text that is already tokenised
    labels: tuple[float, ...]
    media: RowMedia = field(default_factory=RowMedia)
    are_shared: bool = False  # the media belong to each text, not only to the first

    def encode(self, encoder: Encoder) -> list[Encoded] | BadRow:
        """Each text's tokens and a mark, then the labels as bytes of 32-bit numbers."""
        import numpy as np

        from npukit.llm.data.encode import SEPARATOR, Encoded, stored_bytes

        mark = np.array([SEPARATOR], dtype=np.int32)
        parts = []
        images: tuple[RowImage, ...] = ()
        for number, text in enumerate(self.texts):
            encoded = encoder.text(text, self.media if self.are_shared or number == 0 else ())
            if isinstance(encoded, BadRow):
                return encoded
            images = encoded[0].images or images
            if not len(encoded[0].tokens):
                return BadRow("has an empty text")
            parts += [encoded[0].tokens, mark]
        labels = stored_bytes(np.array(self.labels, np.float32).tobytes())
        was_cut = any(len(part) == encoder.data.cutoff for part in parts)
        return [Encoded(np.concatenate([*parts, labels]), was_cut, images=images)]


def labels_of(row: dict[str, Any]) -> tuple[float, ...]:
    """A class, a number, or several of either."""
    label = row.get("label")
    several: list[Any] = label if isinstance(label, list) else [label]
    try:
        labels = tuple(float(item) + 0.0 for item in several)
    except (TypeError, ValueError):
        raise BadRow(f"has no label that is a number; its columns are {listed(row)}") from None
    if not all(map(math.isfinite, labels)):
        raise BadRow("has a label that is not finite")
    return labels


def tokenised_texts(several: Any, row: dict[str, Any], label_each: bool = False) -> Texts:
    """The texts of a row of a data set that ms-swift tokenised (cached_dataset)."""
    if not isinstance(several, list) or not several or not all(map(are_numbers, several)):
        raise BadRow("has input_ids that are not lists of token ids")
    labels = labels_of({"label": row.get("labels")})
    if label_each and len(labels) != len(several):
        raise BadRow(f"has {len(labels)} labels for {len(several)} texts")
    return Texts(tuple(several), labels)


def documents(row: dict[str, Any], role: str) -> tuple[list[Conversation], list[Conversation]]:
    """The texts that match the question, and those that do not, as turns of `role`."""
    fitting, others = (_documents(row, name, role) for name in ("positive", "negative"))
    if not fitting:
        raise BadRow(f"has no positive; its columns are {listed(row)}")
    return fitting, others


def _documents(row: dict[str, Any], name: str, role: str) -> list[Conversation]:
    """Texts next to the question: strings, or conversations as in ms-swift's positive_messages."""
    value = row.get(f"{name}_messages", row.get(name))
    if value is None:
        return []
    several = value if isinstance(value, list) else [value]
    if several and isinstance(several[0], dict):
        several = [several]
    return [_document(document, name, role) for document in several]


def _document(value: Any, name: str, role: str) -> Conversation:
    turns = [{"role": role, "content": value}] if isinstance(value, str) else value
    if not isinstance(turns, list) or not turns or not all(_is_turn(turn) for turn in turns):
        raise BadRow(f"has a {name} that is neither text nor a conversation")
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
