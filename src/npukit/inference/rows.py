"""The rows of a batch and their answers on disk.

While a batch runs, its answers are in a folder beside the output: one file for each process, with one line for each
answered row, in any order. A process that is killed leaves at most half a line, which does not count. When every row
has its line, the output is written in the order of the input.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.files import RawRow
from npukit.llm.data.sources import Table, find_table
from npukit.report.writing import check_file, disk_errors_named, whole_file, write_json

ANSWERS = Path("answers.jsonl")  # the default output
STILL_THERE = "Free some space: answers so far are kept, and the same command answers the other rows."


def find_tables(paths: Sequence[str], folder: Path = Path("data")) -> list[Table]:
    """The data sets of these names: files, folders, entries of dataset_info.json, names on a hub."""
    options = DataOptions(train=tuple(Source(path=path) for path in paths), folder=folder)
    tables = [find_table(source, options) for source in options.train]
    for file in (file for table in tables for file in table.files if file.suffix.lower() == ".txt"):
        raise NpukitError(f"{file}: a text file has no rows: use .jsonl, .json, .csv or .parquet.")
    return tables


def records(tables: Sequence[Table]) -> Iterator[tuple[int, Table, RawRow]]:
    """All rows, numbered from 1 across all tables."""
    number = 0
    for table in tables:
        for index, record in enumerate(table.records()):
            if table.limit is not None and index >= table.limit:
                break
            number += 1
            yield number, table, record


class Answers:
    """The answers of a batch on disk.

    >>> answers = Answers(Path("answers.jsonl"), settings={"model": "qwen2"})
    >>> 7 in answers.done                      # answered by a run that was killed
    >>> answers.add(8, {"response": "Yes."})
    >>> answers.finish(rows=8)                 # True: answers.jsonl is there
    """

    def __init__(self, output: Path, settings: dict[str, Any], rank: int = 0) -> None:
        check_file(output)
        self.output, self._folder = output, _beside(output)
        self._prepare(settings)
        self.done = set(self._offsets())
        # Never a file that a killed process of the same rank left, perhaps with half a line at its end.
        self._file = (self._folder / f"rows-{rank}-{secrets.token_hex(4)}.jsonl").open("ab")

    def _prepare(self, settings: dict[str, Any]) -> None:
        """Continue with the answers of an earlier run with the same settings."""
        if self.output.exists():
            raise NpukitError(f"{self.output} already exists: choose another --output, or replace it with --force.")
        with disk_errors_named(self.output, self._folder):
            self._folder.mkdir(exist_ok=True)
        with self._lock():
            file = self._folder / "settings.json"
            if not file.exists():
                write_json(file, settings)
            before = json.loads(file.read_text(encoding="utf-8"))
        if changed := sorted(name for name in settings if before.get(name) != settings[name]):
            raise NpukitError(
                f"{self.output} was started with another {' and '.join(changed)}: continue with the same one, or "
                "start over with --force."
            )

    def add(self, number: int, row: dict[str, Any]) -> None:
        """Write the answer to a row; when this returns, it is safe on disk."""
        with disk_errors_named(self.output, self._folder, STILL_THERE):
            self._file.write(json.dumps({"row": number, **row}, ensure_ascii=False).encode() + b"\n")
            self._file.flush()

    def finish(self, rows: int) -> bool:
        """Write the output if every row is answered, by this process and the others."""
        self._file.close()
        with self._lock():
            if not self._folder.exists():  # another process was faster
                return self.output.exists()
            places = self._offsets()
            if len(places) < rows:
                return False
            files = {file: file.open("rb") for file, _ in places.values()}
            with whole_file(self.output) as beside, beside.open("wb") as merged:
                for number in sorted(places):
                    file, offset = places[number]
                    files[file].seek(offset)
                    merged.write(files[file].readline())
            for opened in files.values():
                opened.close()
            shutil.rmtree(self._folder)
        return True

    def _offsets(self) -> dict[int, tuple[Path, int]]:
        """The offset of each answered row's line."""
        places: dict[int, tuple[Path, int]] = {}
        for file in sorted(self._folder.glob("rows-*.jsonl")):
            offset = 0
            with file.open("rb") as opened:
                for line in opened:
                    if line.endswith(b"\n"):
                        places.setdefault(int(json.loads(line)["row"]), (file, offset))
                    offset += len(line)
        return places

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the output's folder against other processes."""
        folder = os.open(self.output.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def start_over(output: Path) -> None:
    """Remove an output and the answers of a killed run."""
    check_file(output)
    shutil.rmtree(_beside(output), ignore_errors=True)
    output.unlink(missing_ok=True)


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.part")
