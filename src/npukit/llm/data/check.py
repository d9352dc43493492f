"""Check local data quickly before anything heavy is loaded. Nothing is downloaded from a hub."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.files import RawRow, read_file
from npukit.llm.data.layout import COLUMNS, recognise, renamed
from npukit.llm.data.row import BadRow, Layout, LeftOut, Row, listed
from npukit.llm.data.sources import Table, find_table
from npukit.llm.tasks.task import Task

LOOK_AT = 2000  # rows to read per data set
FILES = 100


def check_files(data: DataOptions, task: Task) -> list[str]:
    """Describe problems of local data that must be fixed before training; empty if there are none.

    Only the first rows are read. A bad row further down is found when the data is prepared.
    """
    sentences = []
    validation = data.validation if isinstance(data.validation, tuple) else ()
    for source in (*data.train, *validation):
        try:
            _check_names(source, task)
            table = find_table(source, data)
            if not table.hub:
                _check_table(table, data, task)
        except NpukitError as error:
            sentences.append(str(error))
    return sentences


def _check_names(source: Source, task: Task) -> None:
    """Check the names of columns; a task or a reward function may require more columns."""
    unknown = next((name for name in source.columns if name not in COLUMNS), None)
    if unknown and not task.columns_tell:
        near = nearest(unknown, COLUMNS)
        hint = f"did you mean {near}?" if near else f"known are {', '.join(sorted(COLUMNS))}."
        raise NpukitError(f"{source.path}: columns cannot name {unknown!r}; {hint}")


def _check_table(table: Table, data: DataOptions, task: Task) -> None:
    usable = 0
    bad: list[str] = []
    per_file = min(table.limit or LOOK_AT, max(LOOK_AT // len(table.files), 20))
    records = [record for file in table.files[:FILES] for record in itertools.islice(read_file(file), per_file)]
    layout = find_layout(records, table, task)
    for record in records:
        try:
            row_of(record, layout, task)
            usable += 1
        except LeftOut:
            usable += 1
        except BadRow as error:
            bad.append(f"{record.place} {error}")
    if bad and (data.bad_rows == "stop" or not usable):
        raise NpukitError(nothing_usable(table, bad) if not usable else first_bad_row(bad[0]))


def find_layout(records: Iterable[RawRow], table: Table, task: Task) -> Layout:
    """The table's layout, determined by the first row with the columns of one."""
    layout = replace(table.layout, media_folder=str(table.media_folder() or ""))
    if task.columns_tell and layout.format == "auto":
        layout = replace(layout, format="messages")  # the columns of a row tell what its answers are
    first: list[str] | None = None
    unreadable: list[str] = []
    for record in records if layout.format == "auto" else ():
        try:
            row = renamed(_readable(record), layout)
        except BadRow as error:
            unreadable.append(f"{record.place} {error}")
            continue
        first = first if first is not None else list(row)
        if recognised := recognise(row):
            layout = replace(layout, format=recognised[0], columns=recognised[1] | layout.columns)
            break
    if layout.format == "auto":
        if unreadable and not first:
            raise NpukitError(nothing_usable(table, unreadable))
        raise NpukitError(f"{table.name} has no rows." if first is None else _unknown_columns(table, first))
    task.check_layout(layout, table.name)
    return layout


def _unknown_columns(table: Table, columns: list[str]) -> str:
    names = listed(columns)
    if "rejected" in columns:
        return f"{table.name} has preference pairs ({names}), which are for task: dpo or rm."
    return (
        f"{table.name}: its columns ({names}) match no known layout; "
        "say what they mean, as columns: {instruction: ..., output: ...}, {messages: ...} or {text: ...}."
    )


def _readable(record: RawRow) -> object:
    if record.problem:
        raise BadRow(record.problem)
    return record.value


def row_of(record: RawRow, layout: Layout, task: Task) -> Row:
    """The meaning of a record; raises BadRow or LeftOut."""
    return task.row(renamed(_readable(record), layout), layout)


def nothing_usable(table: Table, bad: list[str]) -> str:
    """The message for a table without a usable row; `bad` contains the first places and reasons."""
    return f"No row of {table.name} can be used: {bad[0]}."


def first_bad_row(bad: str) -> str:
    """The message for the first bad row, if bad rows are not skipped."""
    return f"{bad}. Fix or remove this row, or set data.bad_rows=skip."
