"""Data sets to train on: rows chosen from tokenised tables, as they are or packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.llm.data.encode import Tokens
from npukit.llm.data.pack import Numbers, Packs
from npukit.llm.data.tokenised import Rows

IGNORED = -100


def inputs_and_labels(tokens: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Input ids and labels of a row. Nothing predicts its first token, so that never counts."""
    counts = tokens >= 0
    ids = np.where(counts, tokens, ~tokens).astype(np.int64)
    labels = np.where(counts, ids, IGNORED)
    labels[:1] = IGNORED
    return ids, labels


def packed_row(rows: Sequence[Tokens], pack_length: int, pad_id: int) -> dict[str, Any]:
    """Rows one after another; the padding at the end is a row of its own that does not count."""
    ids = np.full(pack_length, pad_id, dtype=np.int64)
    labels = np.full(pack_length, IGNORED, dtype=np.int64)
    at = 0
    for row in rows:
        ids[at : at + len(row)], labels[at : at + len(row)] = inputs_and_labels(row)
        at += len(row)
    lengths = [len(row) for row in rows] + ([pack_length - at] if at < pack_length else [])
    return {"input_ids": ids, "labels": labels, "lengths": lengths}


class Chosen:
    """Rows of several tables in a fixed order; row number i is row `row[i]` of table `table[i]`."""

    def __init__(self, tables: Sequence[Rows], table: NDArray[np.int32], row: Numbers) -> None:
        self._tables = tables
        self._table = table
        self._row = row

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Row `number`: its input_ids, and the labels of those that count."""
        ids, labels = inputs_and_labels(self.tokens(number))
        return {"input_ids": ids, "labels": labels}

    def tokens(self, number: int) -> Tokens:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        tokens: Tokens = self._tables[int(self._table[number])].tokens(int(self._row[number]))
        return tokens

    def highest_token(self) -> int:
        """The highest number of a token in the tables."""
        return max(rows.highest_token() for rows in self._tables)

    def lengths(self) -> Numbers:
        """How many tokens each row has."""
        lengths = np.zeros(len(self), dtype=np.int64)
        for number, rows in enumerate(self._tables):
            mine = self._table == number
            lengths[mine] = np.diff(rows.offsets)[self._row[mine]]
        return lengths


class Packed:
    """Chosen rows, several to a row of `pack_length` tokens."""

    def __init__(self, rows: Chosen, packs: Packs, pack_length: int, pad_id: int) -> None:
        self._rows = rows
        self._packs = packs
        self._pack_length = pack_length
        self._pad_id = pad_id
        self.highest_token = rows.highest_token

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not -len(self) <= number < len(self):
            raise IndexError(number)
        rows = [self._rows.tokens(row) for row in self._packs[number % len(self)].tolist()]
        return packed_row(rows, self._pack_length, self._pad_id)
