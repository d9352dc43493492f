"""A task as somebody else would add it: answers with a score, which says how much each counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from npukit.llm.config.options import Config
from npukit.llm.data.collate import Collator, tokens
from npukit.llm.data.encode import SEPARATOR, Encoded, Encoder
from npukit.llm.data.row import BadRow, Conversation, Layout, Row, string
from npukit.llm.data.rows import Chosen, inputs_and_labels
from npukit.llm.models.attention import for_attention
from npukit.llm.models.forward import return_loss
from npukit.llm.tasks.task import Batch, Learning, Task


@dataclass(frozen=True)
class ScoredAnswer:
    """A row of its own: a question, an answer, and a score in percent."""

    question: Conversation
    answer: str
    percent: int

    def encode(self, encoder: Encoder) -> list[Encoded] | BadRow:
        encoded = encoder.answers(self.question, [self.answer])
        if isinstance(encoded, BadRow):
            return encoded
        return [Encoded(np.concatenate([encoded[0], [SEPARATOR, self.percent]]).astype(np.int32))]


class ScoredRows:
    """The same rows as examples."""

    def __init__(self, rows: Chosen) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = self._rows.tokens(number)
        ids, labels = inputs_and_labels(tokens[:-2])
        return {"input_ids": ids, "labels": labels, "score": tokens[-1] / 100}


def collate_scored(items: Sequence[dict[str, Any]], collate: Collator) -> Batch:
    return {**collate(items), "scores": torch.tensor([float(item["score"]) for item in items])}


def scored_loss(model: Any, batch: Batch) -> Any:
    inputs = {name: value for name, value in batch.items() if name != "scores"}
    likelihoods = model(**for_attention(inputs), per_token=True).sum(1)
    return -(batch["scores"] * likelihoods).mean()


class Scored(Task):
    """Answers count by their scores."""

    name = "scored"
    summary = "answers with scores (scored)"
    verb = "sft"
    uses: ClassVar[frozenset[str]] = frozenset({"chat"})
    columns_tell = True

    def can_join(self, config: Config) -> bool:
        return False

    def row(self, row: dict[str, Any], layout: Layout) -> Row:
        if not 0 <= row.get("score", -1) <= 1:
            raise BadRow("has no score from 0 to 1")
        question: Conversation = [{"role": "user", "content": string(row, "ask")}]
        return ScoredAnswer(question, string(row, "say"), round(100 * row["score"]))

    def set_output(self, model: Any, config: Config, tokenizer: Any) -> None:
        return_loss(model, 0.0, None)

    def learning(self, config: Config, train: Any, validation: Any, collate: Any) -> Learning:
        return Learning(
            ScoredRows(train),
            validation and ScoredRows(validation),
            partial(collate_scored, collate=collate),
            scored_loss,
            lambda batch: len(batch["scores"]),
            partial(tokens, pad_id=collate.pad_id),
            lambda model, batch: {"loss": scored_loss(model, batch), "score": batch["scores"].mean()},
        )


TASKS = (Scored(),)
