"""Split conversations into questions and their expected answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.data.rows import IGNORED, Chosen, Packed

ANSWER = "answer"  # the column with the tokens of the expected answer


class Questions:
    """Rows without their last answer, which is stored in another column.

    >>> Questions(prepared.validation)[0].columns["answer"]
    (9707, 0, 151645)
    """

    def __init__(self, rows: Chosen | Packed) -> None:
        self._rows = rows.rows if isinstance(rows, Packed) else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> RolloutPrompt:
        row = self._rows[number]
        counted = np.append(row["labels"] != IGNORED, False)
        borders = np.flatnonzero(np.diff(counted, prepend=False))  # where an answer begins and ends
        start, end = borders[-2:] if len(borders) else (len(counted), len(counted))
        answer = tuple(row["labels"][start:end].tolist())
        return RolloutPrompt(
            number, tuple(row["input_ids"][:start].tolist()), [], {ANSWER: answer}, tuple(row["images"][0])
        )


def answered(questions: Sequence[RolloutPrompt]) -> list[RolloutPrompt]:
    """The rows whose answer was not truncated away."""
    return [question for question in questions if question.columns[ANSWER]]
