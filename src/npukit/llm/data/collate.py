"""Collate rows into a batch of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from npukit.llm.data.rows import IGNORED
from npukit.llm.images.images import Images, RowImage
from npukit.llm.models.loss import shifted

FILLED = 64


@dataclass(frozen=True)
class Collator:
    """Concatenates rows into one long row with boundaries, or pads them to the longest.

    Concatenated: input_ids, labels and position_ids [1, tokens], cu_seqlens (int32), the same boundaries as numbers on
    the host (row_ends), max_length (int), row_length (int) if each pack is one row, and groups if there is a `group`.
    Each row holds `pack_length` tokens of packed rows. Without a `pack_length`, rows come as they are, plus one that
    does not count and pads to a multiple of 64: batches then have few lengths and one number of rows, so that little
    needs to be compiled. Padded: input_ids, labels and attention_mask [n, the longest, rounded up to a multiple of
    `multiple`]. Labels are not shifted; the first label of every row is ignored.
    """

    joined: bool
    pad_id: int
    pack_length: int | None = None
    multiple: int = 8
    weighs: bool = False  # adds label_weights: how much each label counts
    group: int | None = None  # tokens per group, for attention within groups; see `_groups`
    images: Images | None = None  # for a vision-language model: adds pixels and positions of images
    finds_labels: bool = False  # adds label_at: where the next token counts

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if self.joined and self.pack_length is None:
            rows = self._filled_up(rows)
        batch = self._join(rows) if self.joined else self._pad(rows)
        if self.weighs:
            batch["label_weights"] = self._weights(rows, batch["labels"])
        if self.finds_labels:
            batch["label_at"] = shifted(batch["labels"]).flatten().ne(IGNORED).nonzero().flatten()
        return batch | self._illustrated(rows, batch) if self.images else batch

    def _illustrated(self, rows: Sequence[dict[str, Any]], batch: dict[str, Any]) -> dict[str, Any]:
        """The inputs for the images of a batch. Each row has a list of images for every row packed into it."""
        assert self.images
        shape = batch["input_ids"].shape
        width = shape[1]
        ends = np.array(batch["row_ends"]) if self.joined else np.arange(1, len(rows) + 1) * width
        images: list[Sequence[RowImage]] = []
        for row in rows:
            own, count = row.get("images", []), len(row.get("lengths", [0]))
            images += [*own, *[[]] * (count - len(own))]
        places = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        answers = batch["labels"].flatten().numpy() != IGNORED
        prompts = [int(answers[row].argmax()) if answers[row].any() else row.stop - row.start for row in places]
        ids = batch["input_ids"].flatten().numpy()
        inputs = self.images.inputs(ids, list(zip(places, images, strict=True)), prompts)
        made = {name: torch.from_numpy(value) for name, value in inputs.items() if isinstance(value, np.ndarray)}
        if "position_ids" in made:
            made["position_ids"] = made["position_ids"].view(-1, *shape)
        if "token_type_ids" in made:
            made["token_type_ids"] = made["token_type_ids"].view(shape)
        return {**inputs, **made}

    def _weights(self, rows: Sequence[dict[str, Any]], labels: torch.Tensor) -> torch.Tensor:
        if self.joined:
            return _one_row([row["label_weights"] for row in rows])
        weights = torch.ones_like(labels)
        for number, row in enumerate(rows):
            weights[number, : len(row["label_weights"])] = torch.as_tensor(row["label_weights"])
        return weights

    def _filled_up(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        spare = FILLED - sum(len(row["input_ids"]) for row in rows) % FILLED
        filling = {"input_ids": np.full(spare, self.pad_id), "labels": np.full(spare, IGNORED)}
        if self.weighs:
            filling["label_weights"] = np.ones(spare)
        return [{**row, "lengths": [len(row["input_ids"])]} for row in (*rows, filling)]

    def _join(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        lengths = np.concatenate([row["lengths"] for row in rows])
        ends = np.cumsum(lengths)
        if self.pack_length is not None and ends[-1] != len(rows) * self.pack_length:
            raise ValueError(f"{len(rows)} packs hold {ends[-1]} tokens, not {self.pack_length} each")
        positions = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        return {
            **({"groups": _groups(lengths.tolist(), self.group)} if self.group else {}),
            "input_ids": _one_row([row["input_ids"] for row in rows]),
            "labels": _one_row([row["labels"] for row in rows]),
            "position_ids": _one_row([positions]),
            "cu_seqlens": torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
            "row_ends": tuple(ends.tolist()),
            "max_length": int(lengths.max()),
            "row_length": self.pack_length if len(lengths) == len(rows) else None,
        }

    def _pad(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(row["input_ids"]) for row in rows)
        width = -(-longest // self.multiple) * self.multiple
        ids = torch.full((len(rows), width), self.pad_id)
        labels = torch.full((len(rows), width), IGNORED)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            length = len(row["input_ids"])
            ids[number, :length] = torch.as_tensor(row["input_ids"])
            labels[number, :length] = torch.as_tensor(row["labels"])
            mask[number, :length] = 1
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def _groups(lengths: Sequence[int], size: int) -> tuple[dict[str, Any], ...]:
    """Boundaries of groups in rows of these lengths. For half of the heads, groups start at each row's first token; for
    the others, half a group later.
    """
    halves = []
    for first in (size, size // 2):
        counts: list[int] = []
        for length in lengths:
            borders = [0, *range(first, length, size), length]
            counts += [stop - start for start, stop in pairwise(borders)]
        ends = np.cumsum(counts)
        cu_seqlens = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
        halves.append({"row_ends": tuple(ends.tolist()), "cu_seqlens": cu_seqlens, "max_length": max(counts)})
    return tuple(halves)


def _one_row(parts: Sequence[Any]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))[None]


def weight(batch: dict[str, Any]) -> int:
    """How many labels count after shifting: never a row's first label, because nothing predicts it."""
    return int((batch["labels"] != IGNORED).sum())


def tokens(batch: dict[str, Any], pad_id: int) -> int:
    """How many tokens are not padding, whether or not they count."""
    return int(((batch["labels"] != IGNORED) | (batch["input_ids"] != pad_id)).sum())


def tokens_of_texts(batch: dict[str, Any]) -> int:
    """The same for rows without labels of their own."""
    return int(batch["attention_mask"].sum())
