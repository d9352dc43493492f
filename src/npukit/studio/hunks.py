"""Accepts or drops single hunks of a migration."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npukit.errors import NpukitError
from npukit.migrate.change import Change
from npukit.migrate.migration import Migration
from npukit.report.terminal import printable
from npukit.source.document import Unreadable, apply_edits, read
from npukit.source.notebook import Notebook
from npukit.source.place import Edit

CONTEXT = 3  # lines around a hunk that are shown
APART = 2  # lines between two hunks


@dataclass(frozen=True)
class Hunk:
    """Lines of a file, or of a notebook's code, with their replacement."""

    start: int
    end: int
    lines: tuple[str, ...]


def hunks(change: Change) -> list[Hunk]:
    """The hunks of a change; changes that are close together are one.

    >>> [hunk.lines for hunk in hunks(change)]
    [('device = "npu"\\n',)]
    """
    before, after = _code(change, change.before), _code(change, change.after)
    book = Notebook(change.before) if change.path.suffix == ".ipynb" else None

    def cell(line: int) -> int:
        return book.cell_of(line + 1)[0] if book else 0

    groups: list[list[tuple[int, int, int, int]]] = []
    for tag, start, end, new, new_end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if groups and start - groups[-1][-1][1] < APART and cell(start) == cell(groups[-1][-1][0]):
            groups[-1].append((start, end, new, new_end))
        else:
            groups.append([(start, end, new, new_end)])
    return [Hunk(group[0][0], group[-1][1], tuple(after[group[0][2] : group[-1][3]])) for group in groups]


def with_hunks(change: Change, accepted: Collection[int]) -> Change | None:
    """The change with these hunks only; None without any. Code that no longer parses is refused."""
    all_of_them = hunks(change)
    chosen = [hunk for number, hunk in enumerate(all_of_them) if number in accepted]
    if len(chosen) == len(all_of_them):
        return change
    if not chosen:
        return None
    before = _code(change, change.before)
    offsets = [0]
    for line in before:
        offsets.append(offsets[-1] + len(line))
    edits = [Edit(offsets[hunk.start], offsets[hunk.end], "".join(hunk.lines)) for hunk in chosen]
    is_notebook = change.path.suffix == ".ipynb"
    after = Notebook(change.before).edited(edits) if is_notebook else apply_edits(change.before, edits)
    try:
        read(change.path, after.encode(change.encoding)).must_parse()
    except Unreadable as error:
        raise NpukitError(f"{change.path.name} does not parse without the dropped changes: {error}.") from error
    return replace(change, after=after)


def chosen(migration: Migration, dropped: dict[str, list[int]]) -> Migration:
    """The migration without the dropped hunks of these files, which are named relative to its root."""
    changes = []
    for change in migration.changes:
        without = set(dropped.get(change.path.relative_to(migration.root).as_posix(), ()))
        accepted = [number for number in range(len(hunks(change))) if number not in without]
        if kept := with_hunks(change, accepted):
            changes.append(kept)
    return replace(migration, changes=tuple(changes))


def shown(change: Change) -> list[dict[str, Any]]:
    """The hunks side by side, with lines around them; lines of a notebook are those of the hunk's cell."""
    before = _code(change, change.before)
    book = Notebook(change.before) if change.path.suffix == ".ipynb" else None
    sides: list[dict[str, Any]] = []
    added = 0  # lines that the hunks before have added to the file or cell
    for hunk in hunks(change):
        cell, cell_start = book.cell_of(hunk.start + 1) if book else (None, 1)
        if sides and sides[-1]["cell"] != cell:
            added = 0
        near = range(max(0, hunk.start - CONTEXT), min(len(before), hunk.end + CONTEXT))
        around = [at for at in near if not book or book.cell_of(at + 1)[0] == cell]
        rows: list[tuple[str | None, str | None]] = [(before[at], before[at]) for at in around if at < hunk.start]
        number = hunk.start - len(rows) + 2 - cell_start
        rows += _side_by_side(before[hunk.start : hunk.end], hunk.lines)
        rows += [(before[at], before[at]) for at in around if at >= hunk.end]
        lines = [[_line(one), _line(other)] for one, other in rows]
        sides.append({"before": number, "after": number + added, "rows": lines, "cell": cell})
        added += len(hunk.lines) - (hunk.end - hunk.start)
    return sides


def _side_by_side(before: Sequence[str], after: Sequence[str]) -> list[tuple[str | None, str | None]]:
    rows: list[tuple[str | None, str | None]] = []
    for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += [(line, line) for line in before[i:i_end]]
            continue
        for at in range(max(i_end - i, j_end - j)):
            one = before[i + at] if i + at < i_end else None
            rows.append((one, after[j + at] if j + at < j_end else None))
    return rows


def _line(line: str | None) -> str | None:
    return None if line is None else printable(line.rstrip("\r\n"))


def _code(change: Change, text: str) -> list[str]:
    code = Notebook(text).code if change.path.suffix == ".ipynb" else text
    return code.splitlines(keepends=True) if "\f" not in code else [f"{line}\n" for line in code.split("\n")]
