"""Read, tokenise and pack rows during training, for data too large to be prepared first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from npukit.errors import NpukitError
from npukit.llm.data.encode import Encoded, Encoder
from npukit.llm.data.encoded import encoded_rows
from npukit.llm.data.pack import pack
from npukit.llm.data.problems import Problems
from npukit.llm.data.rows import inputs_and_labels, packed_row, weights_of
from npukit.llm.data.sources import Table
from npukit.llm.data.tokenised import Log, Rows
from npukit.report.report import counted

WINDOW = 4096  # rows that are shuffled and packed together


class Stream:
    """Each epoch yields every row once, with tables mixed by weight while they last, and shuffled within windows.

    The order depends only on the seed and the epoch, so a run can resume exactly by skipping the rows already used.
    """

    def __init__(self, tables: Sequence[Table], encoder: Encoder, seed: int, pad_id: int, log: Log) -> None:
        self.problems = Problems()
        self._tables = [replace(table, streaming=True) for table in tables]
        self._held_out = [0] * len(tables)
        self._encoder, self._data, self._end_id = encoder, encoder.data, encoder.end_id
        self._seed, self._pad_id, self._log = seed, pad_id, log
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; each has an order of its own."""
        self._epoch = epoch

    def hold_out(self, wanted: float) -> list[Rows]:
        """Set this many rows at the beginning of the tables apart for validation; training continues after them."""
        if wanted < 1:
            raise NpukitError(
                "A stream does not know how many rows it has: give data.validation as a number of rows, or as files."
            )
        count, more = divmod(int(wanted), len(self._tables))
        self._held_out = [count + (number < more) for number in range(len(self._tables))]
        taken = []
        for table, held_out in zip(self._tables, self._held_out, strict=True):
            rows = list(islice(self._rows(table), held_out))
            if len(rows) < held_out:
                raise NpukitError(
                    f"data.validation takes {counted(held_out, 'row')} of {table.name}, which has {len(rows)}."
                )
            taken.append(Rows.of(rows, end_id=self._end_id))
        return taken

    def __iter__(self) -> Iterator[dict[str, Any]]:
        random = np.random.default_rng([self._seed, 3, self._epoch])
        rows = self._mixed(random)
        while window := list(islice(rows, WINDOW)):
            if self._data.packing:
                yield from self._packs(window, int(random.integers(2**31)))
            else:
                for number in random.permutation(len(window)):
                    tokens, images = window[number].tokens, window[number].images
                    ids, labels = inputs_and_labels(tokens, self._end_id)
                    weights = weights_of(tokens)
                    yield {"input_ids": ids, "labels": labels, "label_weights": weights, "images": [images]}

    def _packs(self, window: list[Encoded], seed: int) -> Iterator[dict[str, Any]]:
        pack_length = self._data.pack_length or self._data.cutoff
        packs = pack(np.array([len(row.tokens) for row in window]), pack_length, seed)
        for number in range(len(packs)):
            rows = [window[row] for row in packs[number]]
            packed = packed_row([row.tokens for row in rows], pack_length, self._pad_id, self._end_id)
            yield packed | {"images": [row.images for row in rows]}

    def _mixed(self, random: np.random.Generator) -> Iterator[Encoded]:
        left = [
            (table.weight or 1.0, islice(self._rows(table), held_out, None))
            for table, held_out in zip(self._tables, self._held_out, strict=True)
        ]
        while left:
            weights = np.array([weight for weight, _ in left])
            number = int(random.choice(len(left), p=weights / weights.sum())) if len(left) > 1 else 0
            encoded = next(left[number][1], None)
            if encoded is None:
                del left[number]
            else:
                yield encoded

    def _rows(self, table: Table) -> Iterator[Encoded]:
        reported = self.problems.bad
        for encoded in encoded_rows(table, self._encoder, self.problems):
            if self.problems.bad > reported:
                for place in self.problems.first[reported:]:
                    self._log(f"Skipped a row: {place}.")
                reported = self.problems.bad
            yield encoded
