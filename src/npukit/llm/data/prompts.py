"""Prompts for reinforcement learning: questions, and the columns of their rows for reward functions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from npukit.llm.data.row import BadRow, Conversation
from npukit.llm.medium import RowMedia

if TYPE_CHECKING:
    from npukit.llm.data.encode import Encoded, Encoder
    from npukit.llm.data.rows import Chosen
    from npukit.llm.images.images import RowImage


@dataclass(frozen=True)
class PromptRow:
    """A question, and all columns of its row."""

    question: Conversation
    columns: dict[str, Any]
    media: RowMedia = field(default_factory=RowMedia)  # referred to by tags such as <image> in the question

    def encode(self, encoder: Encoder) -> list[Encoded] | BadRow:
        """The question's tokens and a mark, then the other columns as JSON bytes."""
        import numpy as np

        from npukit.llm.data.encode import SEPARATOR, stored_bytes

        encoded = encoder.prompt(self.question, self.media)
        if isinstance(encoded, BadRow):
            return encoded
        try:
            text = json.dumps({"messages": self.question, "columns": self.columns})
        except (TypeError, ValueError) as error:
            return BadRow(f"has a column that is not a plain value: {error}")
        mark = np.array([SEPARATOR], dtype=np.int32)
        return [replace(encoded, tokens=np.concatenate([encoded.tokens, mark, stored_bytes(text.encode())]))]


class RolloutPrompt(NamedTuple):
    """A prompt as an example: its index in the data, its tokens, and the columns for reward functions."""

    number: int
    ids: tuple[int, ...]
    messages: list[dict[str, Any]]
    columns: dict[str, Any]
    images: tuple[RowImage, ...] = ()

    @property
    def content(self) -> tuple[tuple[int, ...], tuple[RowImage, ...]]:
        """The content for the model."""
        return self.ids, self.images


class RolloutPrompts:
    """Rows as prompts."""

    def __init__(self, rows: Chosen) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> RolloutPrompt:
        import numpy as np

        from npukit.llm.data.encode import SEPARATOR, kept_bytes

        tokens = self._rows.tokens(number)
        at = int(np.flatnonzero(tokens == SEPARATOR)[0])
        rest, images = json.loads(kept_bytes(tokens[at + 1 :])), tuple(self._rows.images(number))
        return RolloutPrompt(number, tuple((~tokens[:at]).tolist()), rest["messages"], rest["columns"], images)
