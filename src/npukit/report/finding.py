"""The one form in which npukit tells of a problem: every report is made of findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Severity(str, Enum):
    """How much a finding matters."""

    error = "error"  # it will not run
    warning = "warning"  # it will run, slowly or with other results
    note = "note"  # good to know


@dataclass(frozen=True)
class Place:
    """Where in a file: lines and columns count from 1; a notebook's cells from 0."""

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
    """Replace the characters from `start` up to `end` (offsets into the file's text) by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A problem, with all that a person or a program needs to act on it.

    >>> Finding("NPK110", Severity.error, "model.cuda() moves to a CUDA device", why="...", remedy="model.to(device)")
    """

    code: str  # stable, such as NPK110; every code has a page in the docs
    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""
    place: Place | None = None  # findings about a machine have none
    evidence: str = ""  # the line, the version, the output that shows it
    edits: tuple[Edit, ...] = field(default=(), repr=False)  # what mends it, where npukit can

    @property
    def fixable(self) -> bool:
        return bool(self.edits)
