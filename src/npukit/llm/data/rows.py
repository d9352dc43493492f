"""Training data sets: rows selected from tokenised tables, individually or packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.llm.data.encode import END, MORE, Tokens
from npukit.llm.data.pack import Numbers, Packs
from npukit.llm.data.tokenised import Rows
from npukit.llm.images.images import RowImage

IGNORED = -100


def weights_of(tokens: Tokens) -> NDArray[np.int64]:
    """How much each token counts: 1, or more if answers are weighted."""
    return np.where(tokens >= 0, tokens % END // MORE + 1, 1).astype(np.int64)


def inputs_and_labels(tokens: Tokens, end_id: int = IGNORED) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Input ids and labels of a row. Nothing predicts its first token, so it never counts."""
    counts, is_end = tokens >= 0, tokens >= END
    ids = np.where(counts, tokens % MORE, ~tokens).astype(np.int64)
    labels = np.where(is_end, end_id, np.where(counts, ids, IGNORED))
    labels[:1] = IGNORED
    return ids, labels


def packed_row(rows: Sequence[Tokens], pack_length: int, pad_id: int, end_id: int = IGNORED) -> dict[str, Any]:
    """Concatenate rows. The padding at the end is a row of its own that does not count."""
    ids = np.full(pack_length, pad_id, dtype=np.int64)
    labels = np.full(pack_length, IGNORED, dtype=np.int64)
    weights = np.ones(pack_length, dtype=np.int64)
    at = 0
    for row in rows:
        ids[at : at + len(row)], labels[at : at + len(row)] = inputs_and_labels(row, end_id)
        weights[at : at + len(row)] = weights_of(row)
        at += len(row)
    lengths = [len(row) for row in rows] + ([pack_length - at] if at < pack_length else [])
    return {"input_ids": ids, "labels": labels, "label_weights": weights, "lengths": lengths}


class Chosen:
    """Rows of several tables in a fixed order; row number i is row `row[i]` of table `table[i]`."""

    def __init__(self, tables: Sequence[Rows], table: NDArray[np.int32], row: Numbers) -> None:
        self._tables = tables
        self._table = table
        self._row = row
        self.end_id = tables[0].end_id

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Row `number`: its input_ids, and the labels of those that count."""
        tokens = self.tokens(number)
        ids, labels = inputs_and_labels(tokens, self.end_id)
        images = [self.images(number)]
        return {"input_ids": ids, "labels": labels, "label_weights": weights_of(tokens), "images": images}

    def images(self, number: int) -> list[RowImage]:
        """The images of row `number`."""
        return self._tables[int(self._table[number])].images(int(self._row[number]))

    def tokens(self, number: int) -> Tokens:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        tokens: Tokens = self._tables[int(self._table[number])].tokens(int(self._row[number]))
        return tokens

    def highest_token(self) -> int:
        """The highest token id in the tables."""
        return max(rows.highest_token() for rows in self._tables)

    def lengths(self) -> Numbers:
        """The number of tokens of each row."""
        lengths = np.zeros(len(self), dtype=np.int64)
        for number, rows in enumerate(self._tables):
            mine = self._table == number
            lengths[mine] = np.diff(rows.offsets)[self._row[mine]]
        return lengths


class Packed:
    """Selected rows, several to a row of `pack_length` tokens."""

    def __init__(self, rows: Chosen, packs: Packs, pack_length: int, pad_id: int) -> None:
        self.rows = rows
        self._packs = packs
        self._pack_length = pack_length
        self._pad_id = pad_id
        self.highest_token = rows.highest_token

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        numbers = self._packs[number % len(self)].tolist()
        rows = [self.rows.tokens(row) for row in numbers]
        images = [self.rows.images(row) for row in numbers]
        return packed_row(rows, self._pack_length, self._pad_id, self.rows.end_id) | {"images": images}
