"""Findings for the terminal. Those with the same text are shown once, with their places below."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from npukit.report.finding import Finding, Severity, page_hint
from npukit.report.language import language, translated
from npukit.report.report import FindingGroup, Report, counted, groups, shown, translated_finding
from npukit.report.terminal import paint
from npukit.report.wrapping import wrap

_MAX_PLACES = 6
_MIN_EVIDENCE = 60  # columns for the line itself, however long its position is
_COLORS = {Severity.error: "31;1", Severity.warning: "33;1", Severity.note: "36"}


def terminal_columns() -> int:
    """The width of text for people."""
    return min(shutil.get_terminal_size((110, 24)).columns, 120)


def render_text(report: Report, color: bool = False, width: int | None = None) -> str:
    """The report as lines of at most `width` columns."""
    columns = width or terminal_columns()
    lines = [paint(report.title, "1", color)]
    lines += [labelled(name, translated(value)) for name, value in report.facts.items()]
    by_hand = [finding for finding in report.findings if not finding.fixable]
    lines += grouped(by_hand, columns, color, report.base)
    fixable = [finding for finding in report.findings if finding.fixable]
    if fixable:
        lines += ["", *_fixable(fixable, report, columns, color)]
    lines += ["", *wrap(report.verdict, columns), *page_hint(by_hand or fixable)]
    return "\n".join(lines) + "\n"


def grouped(findings: Sequence[Finding], columns: int, color: bool = False, base: Path | None = None) -> Iterator[str]:
    """The findings as lines, with an empty line before each group with the same text."""
    for group in groups(findings):
        yield ""
        yield from _group(group, columns, color, base)


def _group(group: FindingGroup, columns: int, color: bool, base: Path | None) -> Iterator[str]:
    first = translated_finding(group.first)
    label = f"{first.severity.value:<8}{first.code}  "
    head = wrap(first.what, columns - len(label)) or [""]
    yield paint(f"{first.severity.value:<8}", _COLORS[first.severity], color) + f"{first.code}  {head[0]}"
    indent = " " * 8
    yield from (" " * len(label) + line for line in head[1:])
    for name, text in (("why", first.why), ("do", first.remedy)):
        if text:
            yield from wrap(labelled(name, text), columns, indent, indent + "  ")
    placed = [finding for finding in group.findings if finding.place]
    places = [_where(finding, base) for finding in placed[:_MAX_PLACES]]
    widest = max((len(place) for place in places), default=0)
    for place, finding in zip(places, placed, strict=False):
        evidence = finding.evidence.strip()[: max(columns - len(indent) - widest - 2, _MIN_EVIDENCE)]
        yield f"{indent}{place:<{widest}}  {paint(evidence, '2', color)}".rstrip()
    if len(placed) > _MAX_PLACES:
        rest = placed[_MAX_PLACES:]
        files = len({finding.place.file for finding in rest if finding.place})
        yield indent + translated(f"… and {len(rest)} more in {counted(files, 'file')}")


def labelled(name: str, text: str) -> str:
    """A text preceded by its label.

    >>> labelled("why", "NPUs use HCCL.")
    'why: NPUs use HCCL.'
    """
    return f"{name}: {text}" if language() == "en" else f"{translated(name)}\uff1a{text}"


def _where(finding: Finding, base: Path | None) -> str:
    place = finding.place
    assert place is not None
    cell = "" if place.cell is None else f"[cell {place.cell}]"
    return f"{shown(place.file, base)}{cell}:{place.line}"


def _fixable(findings: list[Finding], report: Report, columns: int, color: bool) -> Iterator[str]:
    files = len({finding.place.file for finding in findings if finding.place})
    head = f"`npukit migrate` changes {counted(len(findings), 'place')} in {counted(files, 'file')}:"
    yield paint(translated(head), "32;1", color)
    for code, count in sorted(Counter(finding.code for finding in findings).items()):
        name = report.rule_names.get(code, "")
        yield f"{count:>7} x {code}  {name}"[:columns]
