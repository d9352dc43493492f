"""Find the places of findings again after a file has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from npukit.migrate.line_blocks import blocks
from npukit.report import Finding
from npukit.source import Document, Place


def with_moved_places(findings: Sequence[Finding], before: Document, after: Document) -> tuple[Finding, ...]:
    """Return the findings with their places in the changed file.

    >>> with_moved_places(findings, before, after)[0].place.line  # a line was added above
    4
    """
    if not findings:
        return ()
    old, new = before.code.split("\n"), after.code.split("\n")
    changed = blocks(old, new)

    def line_of(line: int) -> int:
        kind, i, _, j, end = next((block for block in changed if block[1] <= line < block[2]), ("equal", 0, 0, 0, 0))
        if kind != "replace":
            return min(j + line - i, len(new) - 1)
        return max(range(j, end), key=lambda candidate: SequenceMatcher(None, old[line], new[candidate]).ratio())

    def place_of(place: Place) -> Place:
        in_cell = before.book and after.book and place.cell is not None
        shift = before.book.first_line(place.cell) if in_cell else 1  # type: ignore[union-attr, arg-type]
        line = line_of(place.line - 1 + shift - 1) + 2
        line -= after.book.first_line(place.cell) if in_cell else 1  # type: ignore[union-attr, arg-type]
        end = place.end_line and line + place.end_line - place.line
        return replace(place, line=line, end_line=end)

    return tuple(replace(finding, place=place_of(finding.place)) if finding.place else finding for finding in findings)
