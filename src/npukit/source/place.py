"""Positions in files, and edits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """A position in a file. Lines and columns count from 1, a notebook's cells from 0."""

    file: Path
    line: int = 1
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None
    cell: int | None = None

    def __str__(self) -> str:
        cell = "" if self.cell is None else f"[cell {self.cell}]"
        return f"{self.file}{cell}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Edit:
    """Replaces the characters from `start` up to `end` (offsets into the file's text) with `text`."""

    start: int
    end: int
    text: str
