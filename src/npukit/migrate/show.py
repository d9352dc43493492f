"""A migration as terminal text, Markdown and JSON: the change log, what is left to do, and the counts of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npukit.migrate.migration import Migration
from npukit.report import Finding
from npukit.report.finding import page_hint
from npukit.report.json import finding_data
from npukit.report.language import translated
from npukit.report.markdown import cell, escaped, fence
from npukit.report.report import counted, printable_finding, what_is_left
from npukit.report.terminal import printable, printable_line
from npukit.report.text import grouped, terminal_columns


def as_text(migration: Migration) -> str:
    """A summary for the terminal."""
    lines = [translated(_summary(migration))]
    lines += [f"  {code}  {count:5}  {what}" for code, count, what in _by_rule(migration)]
    todo = [printable_finding(finding) for finding in migration.by_hand]
    if todo:
        lines += ["", translated(f"Left to do ({len(todo)}), with places in the migrated files:")]
        lines += [*grouped(todo, terminal_columns(), base=migration.root.absolute()), "", *page_hint(todo)]
    return "\n".join(lines)


def as_markdown(migration: Migration) -> str:
    """A report to keep: what changed and why, what is left to do, and every diff."""
    parts = ["# Migration to NPU", "", _summary(migration), "", "| rule | changes | what |", "|---|---:|---|"]
    parts += [f"| {code} | {count} | {what} |" for code, count, what in _by_rule(migration)]
    parts += ["", "## Left to do", *_table(migration.left, migration.root), "", "## Changes"]
    for change in migration.changes:
        name, diff = _name(change.path, migration.root), printable(change.diff(migration.root)).rstrip("\n")
        parts += ["", f"### {escaped(name)}", *_table(change.fixed, migration.root), ""]
        parts += [f"{fence(diff)}diff", diff, fence(diff)]
    return "\n".join(parts) + "\n"


def as_data(migration: Migration) -> dict[str, Any]:
    """The whole migration for programs."""
    root, base = migration.root, migration.root.absolute()
    return {
        "root": str(root),
        "style": migration.goal.style.value,
        "counts": {
            "files": migration.files,
            "lines": migration.lines,
            "changed_files": len(migration.changes),
            "changes": len(migration.fixed),
            "by_hand": len(migration.by_hand),
        },
        "changes": [
            {
                "file": _name(change.path, root),
                "diff": change.diff(root),
                "fixed": [finding_data(finding, base) for finding in change.fixed],
            }
            for change in migration.changes
        ],
        "left": [finding_data(finding, base) for finding in migration.left],
    }


def _summary(migration: Migration) -> str:
    return (
        f"{counted(len(migration.fixed), 'change')} in {len(migration.changes)} of {counted(migration.files, 'file')} "
        f"(style: {migration.goal.style.value}); {what_is_left(migration.left)}."
    )


def _by_rule(migration: Migration) -> list[tuple[str, int, str]]:
    from npukit.migrate.rules import all_rules

    titles = {rule.code: rule.doc.split("\n", 1)[0] for rule in all_rules()}
    counts = Counter(finding.code for finding in migration.fixed)
    return [(code, count, titles.get(code, "")) for code, count in sorted(counts.items())]


def _table(findings: Sequence[Finding], root: Path) -> list[str]:
    if not findings:
        return ["", "Nothing."]
    rows = [
        f"| {cell(_place(finding, root))} | {finding.code} | {cell(finding.what)} | {cell(finding.why)} "
        f"| {cell(finding.remedy)} |"
        for finding in map(printable_finding, findings)
    ]
    return ["", "| place | rule | what | why | remedy |", "|---|---|---|---|---|", *rows]


def _place(finding: Finding, root: Path) -> str:
    place = finding.place
    if place is None:
        return ""
    cell = "" if place.cell is None else f"[cell {place.cell}]"
    return f"{_name(place.file, root)}{cell}:{place.line}"


def _name(path: Path, root: Path) -> str:
    return printable_line(str(path.relative_to(root) if path.is_relative_to(root) else path))
