"""Tokenise the usable rows of a table batch by batch, and count problems with the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.data.check import find_layout, first_bad_row, row_of
from npukit.llm.data.count import about_rows
from npukit.llm.data.encode import Encoded, Encoder, are_bytes
from npukit.llm.data.files import RawRow
from npukit.llm.data.parallel import encode_all
from npukit.llm.data.problems import Problems
from npukit.llm.data.row import BadRow, LeftOut, Row
from npukit.llm.data.sources import Table
from npukit.llm.tasks.task import Task
from npukit.report.progress import BETWEEN_LINES, lines

BATCH = 1024


def encoded_rows(
    table: Table, encoder: Encoder, problems: Problems, records: Iterator[RawRow] | None = None
) -> Iterator[Encoded]:
    """The tokenised usable rows of a table, or of some of its records. Problems are added to `problems`."""
    for _, result in usable_rows(table, encoder, problems, records):
        problems.cut += any(encoded.was_cut for encoded in result)
        problems.unmatched += sum(encoded.unmatched for encoded in result)
        problems.unanswered += not any(((row.tokens >= 0) | are_bytes(row.tokens)).any() for row in result)
        yield from result


def usable_rows(
    table: Table, encoder: Encoder, problems: Problems, records: Iterator[RawRow] | None = None
) -> Iterator[tuple[Row, list[Encoded]]]:
    """Each usable row with its tokens."""
    data = encoder.data
    rows = _laid_out(table, records or table.records(), data, encoder.task, problems)
    batches = iter(lambda: list(islice(rows, BATCH)), [])
    for batch, results in encode_all(encoder, batches, 1 if table.streaming else data.preprocessing_workers):
        for (record, row), result in zip(batch, results, strict=True):
            if isinstance(result, BadRow):
                _bad(record, result, data, problems)
                continue
            problems.rows += 1
            yield row, [encoded.at(record.place) if encoded.images else encoded for encoded in result]


def _laid_out(
    table: Table, records: Iterator[RawRow], data: DataOptions, task: Task, problems: Problems
) -> Iterator[tuple[RawRow, Row]]:
    layout = find_layout(table.records(), table, task)
    usable = 0
    for record in records:
        if usable == table.limit:
            return
        try:
            yield record, row_of(record, layout, task)
            usable += 1
        except LeftOut:
            continue
        except BadRow as error:
            _bad(record, error, data, problems)


def _bad(record: RawRow, error: BadRow, data: DataOptions, problems: Problems) -> None:
    problems.add_bad(f"{record.place} {error}")
    if data.bad_rows == "stop":
        raise NpukitError(first_bad_row(problems.first[0]))


class Counter:
    """Reports progress: how many rows of a table are done, and how long the others will take."""

    def __init__(self, table: Table, log: Callable[[str], None]) -> None:
        self._table, self._began = table, time.monotonic()
        self._on_progress = lines(f"Tokenising {table.name}", "rows", log)
        self._done = self._total = 0

    def skip(self, rows: int) -> None:
        """Account for rows that an earlier run has finished."""
        self._done += rows

    def count(self, rows: Iterable[Encoded]) -> Iterator[Encoded]:
        """Pass rows through and count them."""
        for row in rows:
            yield row
            self._done += 1
            if self._done % BATCH == 0 and time.monotonic() - self._began > BETWEEN_LINES:  # counting takes time, too
                self._total = self._total or about_rows(self._table)
                self._on_progress(self._done, self._total)
