"""Analyse projects: all rules over all files, and what follows from the findings for the project as a whole."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.facts.libraries import imported
from npukit.facts.target import Target
from npukit.machine.installed import installed_target
from npukit.migrate.engine import FileResult, OnProgress, ignore_progress, run
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort
from npukit.migrate.rules import all_rules
from npukit.migrate.selection import Selection
from npukit.report import Finding, Severity, by_hand
from npukit.report.json import finding_data
from npukit.report.language import language, translated
from npukit.report.report import Report, counted, groups, in_order

_LIBRARIES = {
    "works": "runs on NPUs",
    "adapter": "runs on NPUs with an additional package",
    "partial": "runs partly on NPUs",
    "replace": "does not run on NPUs",
    "blocks": "does not run on NPUs",
}
_BLOCKING, _UNREAD = "NPK405", "NPK001"


class Verdict(str, Enum):
    """How far a project is from running on NPUs."""

    ready = "ready"
    after_migrate = "ready after migrate"
    needs_work = "needs work"
    not_known = "not known"
    blocked = "blocked"


@dataclass(frozen=True)
class Analysis:
    """What was found in a project, and what it means for it."""

    title: str
    target: Target
    files: int
    lines: int
    findings: tuple[Finding, ...]
    base: Path | None = None  # the folder of an installed package
    known: int = 0  # findings that the baseline contains already

    @property
    def by_hand(self) -> list[Finding]:
        """Errors and warnings that migrate does not fix."""
        return by_hand(self.findings)

    @property
    def errors(self) -> list[Finding]:
        """What will not run, and migrate does not fix."""
        return [finding for finding in self.by_hand if finding.severity is Severity.error]

    @property
    def verdict(self) -> Verdict:
        if any(finding.code == _BLOCKING for finding in self.errors):
            return Verdict.blocked
        if self.errors:
            return Verdict.needs_work
        if self.unread:
            return Verdict.not_known
        return Verdict.after_migrate if any(finding.fixable for finding in self.findings) else Verdict.ready

    @property
    def unread(self) -> int:
        """How many files were not read, and may hold anything."""
        return sum(finding.code == _UNREAD for finding in self.findings)

    @property
    def hours(self) -> float:
        """An estimate of the work that is left after migrate."""
        efforts = {rule.code: rule.effort for rule in all_rules()}
        minutes = 0
        for group in groups(self.by_hand):
            effort = efforts.get(group.first.code, Effort())
            minutes += effort.first + effort.further * (len(group.findings) - 1)
        return minutes / 60

    @property
    def summary(self) -> str:
        """The verdict as sentences."""
        return "; ".join(self._parts()) + "."

    def _parts(self) -> list[str]:
        fixable = sum(finding.fixable for finding in self.findings)
        warnings = len(self.by_hand) - len(self.errors)
        known = f" ({counted(self.known, 'known finding')} in the baseline)" if self.known else ""
        parts = [f"Verdict{known}: {self.verdict.value}" + self._reason()]
        if fixable and self.verdict is not Verdict.after_migrate:
            parts.append(f"`npukit migrate` changes {counted(fixable, 'place')}")
        if warnings:
            parts.append(counted(warnings, "warning"))
        if self.hours:
            parts.append(f"manual effort: {_duration(self.hours)}")
        elif not self.by_hand:
            parts.append("nothing left to do by hand")
        return parts

    def _reason(self) -> str:
        if self.verdict is Verdict.blocked:
            names = {finding.subject for finding in self.errors if finding.code == _BLOCKING}
            return f" by {', '.join(sorted(names))}"
        if self.verdict is Verdict.needs_work:
            files = len({finding.place.file for finding in self.errors if finding.place})
            codes = Counter(finding.code for finding in self.errors).most_common()
            most = ", ".join(f"{code} x {number}" for code, number in codes[:4]) + (", …" if len(codes) > 4 else "")
            return f" in {counted(len(self.errors), 'place')} of {counted(files, 'file')} ({most})"
        if self.verdict is Verdict.not_known:
            return f", since {counted(self.unread, 'file')} could not be read"
        if self.verdict is Verdict.after_migrate:
            return f" ({counted(sum(finding.fixable for finding in self.findings), 'place')})"
        return ""

    def as_data(self) -> dict[str, Any]:
        """The analysis for programs."""
        severities = Counter(finding.severity.value for finding in self.findings)
        return {
            "title": self.title,
            "target": str(self.target),
            "verdict": self.verdict.value,
            "summary": self.summary,
            "counts": {
                "files": self.files,
                "lines": self.lines,
                "errors": severities["error"],
                "warnings": severities["warning"],
                "notes": severities["note"],
                "fixable": sum(finding.fixable for finding in self.findings),
                "by_hand": len(self.by_hand),
                "unread": self.unread,
                "in_baseline": self.known,
            },
            "hours_by_hand": round(self.hours, 2),
            "findings": [finding_data(finding, self.base) for finding in in_order(self.findings)],
        }

    def report(self) -> Report:
        """The analysis in the form that is rendered."""
        facts = {
            "target": str(self.target),
            "read": f"{counted(self.files, 'file')}, {counted(self.lines, 'line')}",
        }
        names = {rule.code: rule.name for rule in all_rules()}
        if self.base:
            facts["in"] = str(self.base)
        if self.base and (library := imported(self.title)):
            facts["known"] = f"{library.name} {_LIBRARIES[library.verdict]}: {library.why}."
        verdict = self.summary
        if language() == "zh":
            verdict = "\uff1b".join(map(translated, self._parts())) + "\u3002"
        return Report(self.title, verdict, self.findings, facts, names, self.base)


def analyze(
    paths: Sequence[Path],
    target: Target | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    trace: Path | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Analysis:
    """Find what in files, folders or installed packages will not work, or will work differently, on an NPU.

    >>> analyze([Path("nanoGPT")]).verdict
    <Verdict.after_migrate: 'ready after migrate'>
    """
    goal = Goal(target=target or installed_target())
    results: list[FileResult] = []
    findings: list[Finding] = []
    folders = [_existing(entry) for entry in paths]
    for path in folders:
        selection = Selection.of(path, select, ignore)
        rules = selection.rules(goal.target)
        root = path if path.is_dir() else path.parent
        done = run(selection.files(path), rules, goal.for_project(root), root, on_progress)
        results += done
        findings += [finding for result in done for finding in result.findings]
    if trace:
        from npukit.migrate.trace import findings_in_trace

        findings += findings_in_trace(trace)
    title = ", ".join(str(path) for path in paths)
    base = folders[0].parent if len(paths) == 1 and not paths[0].exists() else None
    lines = sum(result.lines for result in results)
    return Analysis(title, goal.target, len(results), lines, tuple(findings), base)


def _existing(path: Path) -> Path:
    """The path, or the folder of the installed package of that name."""
    if path.exists():
        return path
    if str(path).isidentifier():
        spec = importlib.util.find_spec(str(path))
        if spec and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
        if spec and spec.origin and spec.origin.endswith(".py"):
            return Path(spec.origin)
    raise NpukitError(f"There is no file, folder or installed package {path}.")


def _duration(hours: float) -> str:
    """
    >>> _duration(0.3), _duration(5), _duration(40)
    ('under an hour', 'about 5 hours', 'about 5 days')
    """
    if hours < 1:
        return "under an hour"
    if hours < 12:
        return f"about {counted(round(hours), 'hour')}"
    return f"about {counted(round(hours / 8), 'day')}"
