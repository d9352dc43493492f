"""What a migration does to one file, and where findings are in the changed file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from npukit.migrate.line_blocks import Block, Kind, blocks
from npukit.report import Finding
from npukit.report.terminal import printable_line
from npukit.source import Document, Place


@dataclass(frozen=True)
class Change:
    """One file before and after, and what each edit was for."""

    path: Path
    before: str = field(repr=False)
    after: str = field(repr=False)
    encoding: str
    fixed: tuple[Finding, ...]

    def diff(self, root: Path) -> str:
        """The change as a unified diff, with paths relative to the root."""
        name = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        lines = _unified(_lines(self.before), _lines(self.after))
        head = [printable_line(f"--- a/{name}") + "\n", printable_line(f"+++ b/{name}") + "\n"]
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in (*head, *lines)
        )


def _unified(before: list[str], after: list[str]) -> Iterator[str]:
    """The hunks of a unified diff."""
    for group in _Matcher(before, after).get_grouped_opcodes():
        old, new = _range(group[0][1], group[-1][2]), _range(group[0][3], group[-1][4])
        yield f"@@ -{old} +{new} @@\n"
        for kind, a, a_end, b, b_end in group:
            if kind == "equal":
                yield from (f" {line}" for line in before[a:a_end])
            else:
                yield from (f"-{line}" for line in before[a:a_end])
                yield from (f"+{line}" for line in after[b:b_end])


class _Matcher(difflib.SequenceMatcher[str]):
    """Compares block by block, so that unchanged lines inside a replaced block are not reported as replaced."""

    def __init__(self, before: list[str], after: list[str]) -> None:
        super().__init__()
        self._before, self._after = before, after

    def get_opcodes(self) -> list[Block]:
        return [opcode for block in blocks(self._before, self._after) for opcode in self._smallest(*block)]

    def _smallest(self, kind: Kind, a: int, a_end: int, b: int, b_end: int) -> Iterator[Block]:
        if kind != "replace":
            yield kind, a, a_end, b, b_end
            return
        within = difflib.SequenceMatcher(None, self._before[a:a_end], self._after[b:b_end], autojunk=False)
        yield from ((tag, a + i, a + i_end, b + j, b + j_end) for tag, i, i_end, j, j_end in within.get_opcodes())


def _range(start: int, end: int) -> str:
    """Lines as a unified diff counts them: from 1, without a count of 1, and from the line above where there are none.

    >>> _range(3, 5), _range(3, 4), _range(3, 3)
    ('4,2', '4', '3,0')
    """
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + (length > 0)},{length}"


def _lines(text: str) -> list[str]:
    """Lines with their ends, as patch counts them; Python's splitlines ends one at a form feed as well."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


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
        return max(
            range(j, end), key=lambda candidate: difflib.SequenceMatcher(None, old[line], new[candidate]).ratio()
        )

    def place_of(place: Place) -> Place:
        in_cell = before.book and after.book and place.cell is not None
        shift = before.book.first_line(place.cell) if in_cell else 1  # type: ignore[union-attr, arg-type]
        line = line_of(place.line - 1 + shift - 1) + 2
        line -= after.book.first_line(place.cell) if in_cell else 1  # type: ignore[union-attr, arg-type]
        end = place.end_line and line + place.end_line - place.line
        return replace(place, line=line, end_line=end)

    return tuple(replace(finding, place=place_of(finding.place)) if finding.place else finding for finding in findings)
