"""A report: findings and a summarising sentence, independent of the format in which they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from npukit.report.finding import Finding, Severity, by_hand
from npukit.report.language import translated
from npukit.report.terminal import printable, printable_line

ORDER = [Severity.error, Severity.warning, Severity.note]


@dataclass(frozen=True)
class Report:
    """What a command found, with a summarising sentence.

    >>> Report("my-project", "Ready after migrate.", facts={"target": "torch_npu 2.13 on 910B3"}, findings=[])
    """

    title: str
    verdict: str
    findings: Sequence[Finding]
    facts: Mapping[str, str] = field(default_factory=dict)  # what was examined, and for which target
    rule_names: Mapping[str, str] = field(default_factory=dict)  # code: short name
    base: Path | None = None  # the folder that paths are relative to, if it is not the working directory


@dataclass(frozen=True)
class FindingGroup:
    """Findings with the same text, shown once with all their places."""

    first: Finding
    findings: tuple[Finding, ...]

    @property
    def files(self) -> int:
        return len({finding.place.file for finding in self.findings if finding.place})


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "place"), counted(3000, "place")
    ('1 place', '3,000 places')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def what_is_left(findings: Iterable[Finding]) -> str:
    """What migrate leaves, in words.

    >>> what_is_left([Finding("NPK713", Severity.warning, "checkpoints saved on CUDA need map_location")])
    '1 warning left'
    """
    severities = Counter(finding.severity.value for finding in by_hand(findings))
    counts = [counted(severities[name], name) for name in ("error", "warning") if severities[name]]
    return f"{' and '.join(counts)} left" if counts else "nothing left to do by hand"


def few(items: Sequence[object], most: int = 3) -> str:
    """The first few of many.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sorted by file and position; those without a position come first."""

    def key(finding: Finding) -> tuple[str, int, int, int, str]:
        place = finding.place
        return (str(place.file), place.cell or 0, place.line, place.column, finding.code) if place else (
            "", 0, 0, 0, finding.code
        )  # fmt: skip

    return sorted(findings, key=key)


def groups(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Groups of findings with the same text, the most severe and then the most frequent first."""

    def same(finding: Finding) -> tuple[int, str, str, str, str]:
        return ORDER.index(finding.severity), finding.code, finding.what, finding.why, finding.remedy

    parts = []
    for _, members in groupby(sorted(in_order(findings), key=same), key=same):
        every = tuple(members)
        parts.append(FindingGroup(every[0], every))
    return sorted(parts, key=lambda group: (ORDER.index(group.first.severity), group.first.code, -len(group.findings)))


def printable_report(report: Report) -> Report:
    """The report with everything escaped that could control a terminal or a viewer."""
    return replace(
        report,
        title=printable_line(report.title),
        verdict=printable(report.verdict),
        facts={name: printable_line(value) for name, value in report.facts.items()},
        findings=[printable_finding(finding) for finding in report.findings],
    )


def printable_finding(finding: Finding) -> Finding:
    """The finding with its texts escaped. Its path stays a real path."""
    return replace(
        finding,
        what=printable(finding.what),
        why=printable(finding.why),
        remedy=printable(finding.remedy),
        evidence=printable(finding.evidence),
    )


def translated_finding(finding: Finding) -> Finding:
    """The finding in the user's language."""
    what, why, remedy = map(translated, (finding.what, finding.why, finding.remedy))
    return replace(finding, what=what, why=why, remedy=remedy)


def shown(path: Path, base: Path | None = None) -> str:
    """A path as a user would write it: relative if it lies below the base or the working directory.

    >>> shown(Path.cwd() / "src" / "train.py")
    'src/train.py'
    """
    return printable_line(relative(path, base).as_posix())


def relative(path: Path, base: Path | None = None) -> Path:
    """A path relative to the base or the working directory, if it lies below one of them."""
    for folder in filter(None, (base, Path.cwd())):
        if path.absolute().is_relative_to(folder):
            return path.absolute().relative_to(folder)
    return path
