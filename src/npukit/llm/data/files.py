"""Read rows from JSON, JSON Lines, CSV, Parquet and text files, each with its line number.

A file that cannot be read at all is an error. A row that cannot be read is a `RawRow` with the reason.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from npukit.errors import NpukitError
from npukit.llm.data.json_array import read_json_values

MAX_CHARACTERS = 1 << 24  # characters of a row: far beyond any cutoff, and it would keep a tokenizer busy for minutes
MAX_TIMES, UNSUSPICIOUS = 1000, 1 << 28  # a file that expands by this factor, and to this size, is a decompression bomb
_AT_ONCE = 16  # rows
TEXT_PIECE = 1 << 16  # characters of a .txt file per row, because gigabytes cannot be tokenised at once


class RawRow(NamedTuple):
    """A row as it was read. If `value` is missing, `problem` says why."""

    file: str
    number: int
    value: Any = None
    problem: str | None = None
    unit: str = "line"

    @property
    def place(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


def read_file(path: Path) -> Iterator[RawRow]:
    """The rows of one file, in order: `next(read_file(Path("train.jsonl"))).value`."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise NpukitError(f"{path}: only {', '.join(READERS)} files can be read; rename or convert it.")
    try:
        with path.open("rb") as file:
            head = file.read(4096)
        if wrong := _wrong_content(head, suffix):
            raise NpukitError(f"{path} {wrong}")
        most, characters = _most(path), 0
        for record in READERS[suffix](path):
            size = _size(record.value)
            characters += size
            if characters > most:
                raise _bomb(path)
            yield record if size <= MAX_CHARACTERS else record._replace(value=None, problem=TOO_LARGE)
    except UnicodeDecodeError as error:
        raise NpukitError(f"{path} is not UTF-8 ({error.reason} {error.object[error.start]:#x}): {CONVERT}") from error
    except OSError as error:
        raise NpukitError(f"{path} cannot be read: {error.strerror or error}.") from error


TOO_LARGE = f"has more than {MAX_CHARACTERS:,} characters: split it"
CONVERT = "convert it, for example with iconv -f GB18030 -t UTF-8."


def _size(value: Any) -> int:
    """The number of characters in all texts of a row."""
    waiting, size = [value], 0
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return size


def _wrong_content(head: bytes, suffix: str) -> str | None:
    if not head.strip():
        return "is empty."
    if head.startswith(b"version https://git-lfs"):
        return "is only a Git LFS pointer: fetch the data itself with git lfs pull."
    if head.startswith(b"PAR1") != (suffix == ".parquet"):
        return f"is {'a' if suffix != '.parquet' else 'not a'} Parquet file, whatever its name says."
    if suffix in (".parquet", ".arrow"):
        return None
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16, not UTF-8: convert it with iconv -f UTF-16 -t UTF-8."
    if head.startswith(b"\x1f\x8b"):
        return "is compressed: unpack it with gunzip."
    if b"\0" in head:
        return "is binary, not text."
    if head.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        return "is a web page, not data: download the file itself."
    return None


def _json(path: Path) -> Iterator[RawRow]:
    """An array, one value per line, or a sequence of values; the content decides, not the suffix."""
    with path.open("rb") as file:
        first = next(line for line in file if line.removeprefix(b"\xef\xbb\xbf").strip())
    if first.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        pass
    elif path.suffix.lower() == ".jsonl" or _loads(first)[1] is None:
        yield from _json_lines(path)
        return
    for number, (line, value) in enumerate(read_json_values(path), 1):
        # An array is often one long line, whose length says nothing about its rows.
        yield RawRow(str(path), line, value) if line > 1 else RawRow(str(path), number, value, unit="row")


def _json_lines(path: Path) -> Iterator[RawRow]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                value, problem = _loads(line) if len(line) <= 4 * MAX_CHARACTERS else (None, TOO_LARGE)
                yield RawRow(str(path), number, value, problem)


def _loads(line: bytes) -> tuple[Any, str | None]:
    try:
        return json.loads(line.decode("utf-8-sig")), None
    except UnicodeDecodeError:
        return None, "is not UTF-8"
    except json.JSONDecodeError as error:
        cut = "" if line.endswith(b"\n") else "; the file seems to be cut here"
        return None, f"is not JSON ({error.msg.removesuffix(' at')}, column {error.colno}){cut}"
    except RecursionError:
        return None, "is nested too deeply"


def _csv(path: Path) -> Iterator[RawRow]:
    csv.field_size_limit(1 << 30)
    with path.open(encoding="utf-8-sig", newline="", errors="surrogateescape") as file:
        separator = max(",;\t", key=file.readline().count)  # in locales with a decimal comma, Excel writes semicolons
        file.seek(0)
        rows = csv.reader(file, strict=True, delimiter=separator)
        try:
            header = next(rows)
        except csv.Error as error:
            raise NpukitError(f"{path}, line 1: the header is not CSV ({error}).") from error
        if problem := _wrong_fields(header, len(header)):
            raise NpukitError(f"{path}, line 1 {problem}: {CONVERT}")
        if len(set(header)) != len(header):
            raise NpukitError(f"{path}, line 1: two columns have the same name; every column needs its own.")
        while True:
            begin = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield RawRow(str(path), begin, problem=f"is not CSV ({error})")
                continue
            if row:
                yield RawRow(str(path), begin, dict(zip(header, row, strict=False)), _wrong_fields(row, len(header)))


def _wrong_fields(row: list[str], columns: int) -> str | None:
    if len(row) != columns:
        return f"has {len(row)} fields, but the header has {columns}"
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return None


def _parquet(path: Path) -> Iterator[RawRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
        if sum(group.total_byte_size for group in groups) > _most(path):
            raise _bomb(path)
        yield from _batches(path, file.iter_batches(1024))
    except pyarrow.ArrowException as error:
        raise NpukitError(f"{path} is a broken Parquet file: copy or download it again.") from error


def _arrow(path: Path) -> Iterator[RawRow]:
    """A folder that datasets' save_to_disk wrote."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(path)) as file:
            yield from _batches(path, pyarrow.ipc.open_stream(file))
    except pyarrow.ArrowException as error:
        raise NpukitError(f"{path} is a broken Arrow file: save the data set again.") from error


def _batches(path: Path, batches: Iterable[Any]) -> Iterator[RawRow]:
    """The rows of Arrow batches, a few at a time, because a value that is stored once may be expanded in every row."""
    numbers = itertools.count(1)
    for batch in batches:
        for start in range(0, batch.num_rows, _AT_ONCE):
            for value in batch.slice(start, _AT_ONCE).to_pylist():
                yield RawRow(str(path), next(numbers), value, unit="row")


def _most(path: Path) -> int:
    """How large the content of a file of this size may be."""
    return max(UNSUSPICIOUS, MAX_TIMES * path.stat().st_size)


def _bomb(path: Path) -> NpukitError:
    return NpukitError(f"{path} decompresses to more than {MAX_TIMES:,} times its size, so it is not read.")


def _text(path: Path) -> Iterator[RawRow]:
    """A document in pieces that end at line breaks; `ends` marks the last one."""
    with path.open(encoding="utf-8-sig") as file:
        line, piece = 1, file.readlines(TEXT_PIECE)
        while piece:
            following = file.readlines(TEXT_PIECE)
            yield RawRow(str(path), line, {"text": "".join(piece), "ends": not following})
            line, piece = line + len(piece), following


READERS = {".json": _json, ".jsonl": _json, ".csv": _csv, ".parquet": _parquet, ".arrow": _arrow, ".txt": _text}
