"""Findings as Markdown, for a pull request or a wiki."""

from __future__ import annotations

from collections.abc import Iterator

from npukit.report.finding import Finding
from npukit.report.rendering import Group, Report, counted, groups, shown

_MOST_PLACES = 50


def render_markdown(report: Report) -> str:
    """The report with a table of what was found and a section a finding."""
    found = groups(report.findings)
    lines = [f"# {report.title}", "", report.verdict, ""]
    lines += [f"- {name}: {value}" for name, value in report.facts.items()]
    if found:
        lines += ["", "| severity | rule | what | places | migrate |", "|---|---|---|---:|---|"]
        lines += [
            f"| {group.first.severity.value} | {group.first.code} | {_cell(group.first.what)} | {len(group.findings)} "
            f"| {'changes it' if group.first.fixable else 'by hand'} |"
            for group in found
        ]
    for group in found:
        lines += ["", *_section(group)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _section(group: Group) -> Iterator[str]:
    first = group.first
    yield f"## {first.code}: {first.what}"
    if first.why:
        yield from ("", first.why)
    if first.remedy:
        yield from ("", f"**Do:** {first.remedy}")
    yield ""
    placed = [finding for finding in group.findings if finding.place]
    yield from (_place(finding) for finding in placed[:_MOST_PLACES])
    if len(placed) > _MOST_PLACES:
        yield f"- … and {counted(len(placed) - _MOST_PLACES, 'place')} more"


def _place(finding: Finding) -> str:
    assert finding.place is not None
    cell = "" if finding.place.cell is None else f" cell {finding.place.cell}"
    code = finding.evidence.strip()
    ticks = "``" if "`" in code else "`"
    return f"- {shown(finding.place.file)}{cell}:{finding.place.line}" + (f" {ticks}{code}{ticks}" if code else "")
