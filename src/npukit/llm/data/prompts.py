"""Prompts of reinforcement learning: questions, and the columns of their rows, which reward functions ask for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from npukit.llm.data.row import BadRow, Conversation

if TYPE_CHECKING:
    from npukit.llm.data.encode import Encoded, Encoder
    from npukit.llm.data.rows import Chosen


@dataclass(frozen=True)
class PromptRow:
    """A question, and all that its row says."""

    question: Conversation
    columns: dict[str, Any]

    def encode(self, encoder: Encoder) -> list[Encoded] | BadRow:
        """The question's tokens and a mark, then the rest as the bytes of JSON."""
        import numpy as np

        from npukit.llm.data.encode import SEPARATOR, Encoded

        encoded = encoder.prompt(self.question)
        if isinstance(encoded, BadRow):
            return encoded
        try:
            text = json.dumps({"messages": self.question, "columns": self.columns})
        except (TypeError, ValueError) as error:
            return BadRow(f"has a column that is no plain value: {error}")
        rest = np.frombuffer(text.encode(), np.uint8)
        return [Encoded(np.concatenate([encoded.tokens, [SEPARATOR], rest]).astype(np.int32), encoded.was_cut)]


class RolloutPrompt(NamedTuple):
    """A prompt as an example: its number in the data, its tokens, and what reward functions are told of it."""

    number: int
    ids: tuple[int, ...]
    messages: list[dict[str, Any]]
    columns: dict[str, Any]


class RolloutPrompts:
    """Rows as prompts."""

    def __init__(self, rows: Chosen) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> RolloutPrompt:
        import numpy as np

        from npukit.llm.data.encode import SEPARATOR

        tokens = self._rows.tokens(number)
        at = int(np.flatnonzero(tokens == SEPARATOR)[0])
        rest = json.loads(tokens[at + 1 :].astype(np.uint8).tobytes())
        return RolloutPrompt(number, tuple((~tokens[:at]).tolist()), rest["messages"], rest["columns"])
