"""Findings as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.report.finding import Finding
from npukit.report.report import FindingGroup, Report, counted, groups, shown

_MAX_PLACES = 50
_CODE = re.compile(r"(?<!`)(`[^`\n]+`)(?!`)")
_MARKS = re.compile(r"[\\`*\[\]<>&]|(?<![^\W_])_|_(?![^\W_])")


def render_markdown(report: Report) -> str:
    """The report with a summary table and one section per finding."""
    grouped = groups(report.findings)
    lines = [f"# {escaped(report.title)}", "", escaped(report.verdict), ""]
    lines += [f"- {name}: {escaped(value)}" for name, value in report.facts.items()]
    if grouped:
        lines += ["", "| severity | rule | what | places | migrate |", "|---|---|---|---:|---|"]
        lines += [
            f"| {group.first.severity.value} | {group.first.code} | {cell(group.first.what)} | {len(group.findings)} "
            f"| {'changes it' if group.first.fixable else 'by hand'} |"
            for group in grouped
        ]
    for group in grouped:
        lines += ["", *_section(group)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Escape text for Markdown: HTML and markup are shown literally, code between backticks stays code.

    >>> print(escaped("<b> in `List[int]`"))
    \\<b\\> in `List[int]`
    """
    parts = _CODE.split(text)
    return "".join(part if number % 2 else _MARKS.sub(r"\\\g<0>", part) for number, part in enumerate(parts))


def cell(text: str) -> str:
    """Escape text for a table cell."""
    return escaped(text).replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Inline code, whatever backticks it contains.

    >>> code("a`b")
    '`` a`b ``'
    """
    ticks = fence(text, 1)
    space = " " if "`" in text else ""
    return f"{ticks}{space}{text}{space}{ticks}" if text else ""


def fence(text: str, least: int = 3) -> str:
    """A fence of backticks that the text cannot close.

    >>> fence("no backticks")
    '```'
    """
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1)


def _section(group: FindingGroup) -> Iterator[str]:
    first = group.first
    yield f"## {first.code}: {cell(first.what)}"
    if first.why:
        yield from ("", escaped(first.why))
    if first.remedy:
        yield from ("", f"**Do:** {escaped(first.remedy)}")
    yield ""
    placed = [finding for finding in group.findings if finding.place]
    yield from (_place(finding) for finding in placed[:_MAX_PLACES])
    if len(placed) > _MAX_PLACES:
        yield f"- … and {counted(len(placed) - _MAX_PLACES, 'place')} more"


def _place(finding: Finding) -> str:
    assert finding.place is not None
    number = "" if finding.place.cell is None else f" cell {finding.place.cell}"
    where = f"- {escaped(shown(finding.place.file))}{number}:{finding.place.line}"
    return f"{where} {code(finding.evidence.strip())}".rstrip()
