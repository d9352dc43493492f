"""Tables of facts by version: the columns of the fact, followed by one column per version that contains an x."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npukit.facts.versions import key


@dataclass(frozen=True)
class VersionTable:
    """A CSV file whose first `width` columns are the fact. The other columns are versions, oldest first.

    >>> VersionTable(Path("names.csv"), width=2).rows("2.7")[0]
    {'module': 'accelerator', 'name': 'current_accelerator'}
    """

    path: Path
    width: int

    @cached_property
    def versions(self) -> tuple[str, ...]:
        """The versions with facts, oldest first."""
        with self.path.open(encoding="utf-8", newline="") as file:
            return tuple(next(csv.reader(file))[self.width :])

    def nearest(self, version: str) -> str | None:
        """The version itself or the nearest older one; None if all are newer.

        >>> names.nearest("2.13.0.post2")
        '2.13'
        """
        minor = key(version)[:2]
        return next((known for known in reversed(self.versions) if key(known) <= minor), None)

    def rows(self, version: str) -> list[dict[str, str]]:
        """The facts for exactly this version; none if it is not in the table."""
        if version not in self.versions:
            return []
        column = self.width + self.versions.index(version)
        with self.path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        names = header[: self.width]
        return [dict(zip(names, row, strict=False)) for row in rows if row[column]]
