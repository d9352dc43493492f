"""A migration as one self-contained HTML file: side-by-side diffs, remaining work and filters."""

from __future__ import annotations

import difflib
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from npukit.report.finding import Finding
from npukit.report.json import finding_data
from npukit.report.page import fill_page
from npukit.report.report import counted, printable_finding, what_is_left
from npukit.report.terminal import printable, printable_line
from npukit.report.writing import write_text

_CONTEXT = 3


class Change(Protocol):
    """One file before and after, with the reason for each edit."""

    @property
    def path(self) -> Path: ...
    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def fixed(self) -> tuple[Finding, ...]: ...


class Migration(Protocol):
    """What a migration changed, and what it left to do."""

    @property
    def root(self) -> Path: ...
    @property
    def changes(self) -> Sequence[Change]: ...
    @property
    def left(self) -> tuple[Finding, ...]: ...
    @property
    def files(self) -> int: ...


def write_report(result: Migration, path: Path, verification: Mapping[str, Any] | None = None) -> None:
    """Write the report. A verification, as plain data, adds whether the losses stayed the same.

    >>> write_report(migrate(Path("project")), Path("report.html"), dataclasses.asdict(verification))
    """
    write_text(path, render(result, verification))


def render(result: Migration, verification: Mapping[str, Any] | None = None) -> str:
    """The report as a page. Its contents are embedded as data, and the page renders what is visible."""
    changed = [_changed(change, result.root) for change in result.changes]
    left = [_finding(finding, result.root) for finding in result.left]
    fixed = sum(len(file["findings"]) for file in changed)
    data = {"changed": changed, "left": left, "verification": dict(verification) if verification else None}
    title = html.escape(printable_line(f"Migration of {result.root.resolve().name}"))
    summary = (
        f"{counted(fixed, 'change')} in {len(changed)} of {counted(result.files, 'file')}; {what_is_left(result.left)}."
    )
    return fill_page("migration.html", data, title=title, summary=summary)


def _changed(change: Change, root: Path) -> dict[str, Any]:
    return {
        "file": _name(change.path, root),
        "hunks": list(hunks(_file_lines(change.path, change.before), _file_lines(change.path, change.after))),
        "findings": [_finding(finding, root) for finding in change.fixed],
    }


def _finding(finding: Finding, root: Path) -> dict[str, Any]:
    return finding_data(printable_finding(finding), root.absolute())


def _name(path: Path, root: Path) -> str:
    return printable_line((path.relative_to(root) if path.is_relative_to(root) else path).as_posix())


def _file_lines(path: Path, text: str) -> list[str]:
    """The lines of a file; for a notebook the lines of its cells rather than of its JSON."""
    if path.suffix != ".ipynb":
        return _lines(text)
    cells = json.loads(text).get("cells", [])
    sources = ("".join(cell.get("source", "")) for cell in cells)
    numbered = ((number, cells[number], source) for number, source in enumerate(sources))
    return [
        line
        for number, cell, source in numbered
        if cell.get("cell_type") == "code"
        for line in (f"# cell {number}", *_lines(source), "")
    ]


def _lines(text: str) -> list[str]:
    return printable(text.replace("\r\n", "\n")).removesuffix("\n").split("\n") if text else []


def hunks(before: Sequence[str], after: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The changed places with lines of context: the first line's number on both sides, and pairs of lines.

    A line that one side lacks is null. Equal lines are stored once.

    >>> list(hunks(["a", "b"], ["a", "c", "d"]))
    [{'before': 1, 'after': 1, 'rows': ['a', ('b', 'c'), (None, 'd')]}]
    """
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) > 5000)
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        rows: list[str | tuple[str | None, str | None]] = []
        for tag, i, i_end, j, j_end in group:
            rows += before[i:i_end] if tag == "equal" else _side_by_side(before[i:i_end], after[j:j_end])
        yield {"before": group[0][1] + 1, "after": group[0][3] + 1, "rows": rows}


def _side_by_side(before: Sequence[str], after: Sequence[str]) -> Iterable[tuple[str | None, str | None]]:
    for number in range(max(len(before), len(after))):
        yield before[number] if number < len(before) else None, after[number] if number < len(after) else None
