"""A report and the forms it can be printed in: one model, several renderings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from pathlib import Path

from npukit.report.finding import Finding, Severity

ORDER = [Severity.error, Severity.warning, Severity.note]


class Format(str, Enum):
    text = "text"
    json = "json"
    sarif = "sarif"
    html = "html"
    markdown = "markdown"
    github = "github"


@dataclass(frozen=True)
class Report:
    """What a command found, with the sentence that sums it up.

    >>> Report("my-project", "Ready after migrate.", facts={"target": "torch_npu 2.13 on 910B3"}, findings=[])
    """

    title: str
    verdict: str
    findings: Sequence[Finding]
    facts: Mapping[str, str] = field(default_factory=dict)  # what was looked at and for which target
    rule_names: Mapping[str, str] = field(default_factory=dict)  # code: short name
    base: Path | None = None  # the folder that people read paths from, where it is not the working one


@dataclass(frozen=True)
class Group:
    """Findings that say the same: told once, with all their places."""

    first: Finding
    findings: tuple[Finding, ...]

    @property
    def files(self) -> int:
        return len({finding.place.file for finding in self.findings if finding.place})


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "place"), counted(3, "place")
    ('1 place', '3 places')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """By file and place, those without a place first."""

    def key(finding: Finding) -> tuple[str, int, int, int, str]:
        place = finding.place
        return (str(place.file), place.cell or 0, place.line, place.column, finding.code) if place else (
            "", 0, 0, 0, finding.code
        )  # fmt: skip

    return sorted(findings, key=key)


def groups(findings: Sequence[Finding]) -> list[Group]:
    """The findings that say the same together, the gravest and then the most frequent first."""

    def same(finding: Finding) -> tuple[int, str, str, str, str]:
        return ORDER.index(finding.severity), finding.code, finding.what, finding.why, finding.remedy

    found = []
    for _, members in groupby(sorted(in_order(findings), key=same), key=same):
        every = tuple(members)
        found.append(Group(every[0], every))
    return sorted(found, key=lambda group: (ORDER.index(group.first.severity), group.first.code, -len(group.findings)))


def render(report: Report, format: Format, color: bool = False) -> str:
    """The report in that form, ending in a line break."""
    if format is Format.json:
        from npukit.report.json import render_json as chosen
    elif format is Format.sarif:
        from npukit.report.sarif import render_sarif as chosen
    elif format is Format.html:
        from npukit.report.html import render_html as chosen
    elif format is Format.markdown:
        from npukit.report.markdown import render_markdown as chosen
    elif format is Format.github:
        from npukit.report.github import render_github as chosen
    else:
        from npukit.report.text import render_text

        return render_text(report, color)
    return chosen(report)


def shown(path: Path, base: Path | None = None) -> str:
    """A path as a user would write it: relative where it lies below the base or the working folder."""
    for folder in filter(None, (base, Path.cwd())):
        if path.absolute().is_relative_to(folder):
            return path.absolute().relative_to(folder).as_posix()
    return path.as_posix()
