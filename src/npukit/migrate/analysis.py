"""Analyse projects: all rules over all files, and what follows from the findings for the project as a whole."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from npukit.errors import NpukitError
from npukit.facts.libraries import imported
from npukit.facts.target import Target
from npukit.migrate.engine import UNREADABLE, FileResult, run
from npukit.migrate.goal import Goal
from npukit.migrate.options import project_options
from npukit.migrate.rules import all_rules, choose
from npukit.report import Finding, Severity
from npukit.report.report import Report, counted, groups
from npukit.source import find

# Minutes of work for the first place of a kind and for each further one, by the start of the code; what is only noted
# and what migrate changes costs nothing. Judged by hand: an order of magnitude.
_MINUTES = {
    "NPK1": (15, 5),
    "NPK712": (120, 20),
    "NPK2": (20, 5),
    "NPK204": (960, 480),
    "NPK205": (120, 30),
    "NPK206": (240, 120),
    "NPK3": (45, 10),
    "NPK401": (120, 15),
    "NPK402": (60, 5),
    "NPK403": (15, 5),
    "NPK404": (15, 5),
    "NPK405": (2400, 60),
    "NPK406": (15, 2),
    "NPK407": (60, 5),
    "NPK5": (30, 5),
    "NPK7": (10, 3),
}

_LESS_EXACT = ("NPK151",)  # what migrate says of images and requirements; NPK208, NPK403 and NPK404 say more
_KNOWN = {
    "works": "runs on NPUs",
    "adapter": "runs on NPUs with something beside it",
    "partial": "runs on NPUs in part",
    "replace": "does not run on NPUs",
    "blocks": "does not run on NPUs",
}


class Verdict(str, Enum):
    """How far a project is from running on NPUs."""

    ready = "ready"
    after_migrate = "ready after migrate"
    needs_work = "needs work"
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
    known: int = 0  # further findings, which a baseline holds

    @property
    def by_hand(self) -> list[Finding]:
        """Errors that migrate does not mend."""
        return [each for each in self.findings if each.severity is Severity.error and not each.fixable]

    @property
    def verdict(self) -> Verdict:
        if any(finding.code == "NPK405" for finding in self.by_hand):
            return Verdict.blocked
        if self.by_hand:
            return Verdict.needs_work
        return Verdict.after_migrate if any(each.fixable for each in self.findings) else Verdict.ready

    @property
    def hours(self) -> float:
        """An estimate of the work that is left after migrate."""
        serious = [each for each in self.findings if each.severity is not Severity.note and not each.fixable]
        minutes = 0
        for group in groups(serious):
            code = group.first.code
            prefix = max((each for each in _MINUTES if code.startswith(each)), key=len, default=None)
            first, further = _MINUTES[prefix] if prefix else (0, 0)
            minutes += first + further * (len(group.findings) - 1)
        return minutes / 60

    @property
    def summary(self) -> str:
        """The verdict as sentences."""
        fixable = sum(each.fixable for each in self.findings)
        warned = sum(each.severity is Severity.warning and not each.fixable for each in self.findings)
        beside = f" beside {counted(self.known, 'finding')} of the baseline" if self.known else ""
        parts = [f"Verdict{beside}: {self.verdict.value}" + self._reason()]
        if fixable and self.verdict is not Verdict.after_migrate:
            parts.append(f"migrate changes {counted(fixable, 'place')}")
        if warned:
            parts.append(f"{counted(warned, 'warning')} to read")
        parts.append(f"effort by hand: {_duration(self.hours)}" if self.hours else "nothing left to do by hand")
        return "; ".join(parts) + "."

    def _reason(self) -> str:
        if self.verdict is Verdict.blocked:
            names = {each.what.split(" does not run")[0] for each in self.by_hand if each.code == "NPK405"}
            return f" by {', '.join(sorted(names))}"
        if self.verdict is Verdict.needs_work:
            files = len({each.place.file for each in self.by_hand if each.place})
            codes = Counter(each.code for each in self.by_hand).most_common()
            most = ", ".join(f"{code} x {number}" for code, number in codes[:4]) + (", …" if len(codes) > 4 else "")
            return f" in {counted(len(self.by_hand), 'place')} of {counted(files, 'file')} ({most})"
        if self.verdict is Verdict.after_migrate:
            return f" ({counted(sum(each.fixable for each in self.findings), 'place')})"
        return ""

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
            facts["known"] = f"{library.name} {_KNOWN[library.verdict]}: {library.why}."
        return Report(self.title, self.summary, self.findings, facts, names, self.base)


def analyze(
    paths: Sequence[Path],
    target: Target | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    trace: Path | None = None,
) -> Analysis:
    """Say what in files, folders or installed packages will not run, run slowly or differ on an NPU.

    >>> analyze([Path("nanoGPT")]).verdict
    <Verdict.after_migrate: 'ready after migrate'>
    """
    goal = Goal(target=target or Target.installed())
    results: list[FileResult] = []
    findings: list[Finding] = []
    folders = [_existing(each) for each in paths]
    for path in folders:
        options = project_options(path)
        rules = choose(select or options.select, [*ignore, *options.ignore, *_LESS_EXACT])
        root = path if path.is_dir() else path.parent
        files = [file for file in find([path]) if not options.excludes(file)]
        done = run(files, rules, goal, root)
        found = _told_once([_reason_aside(finding) for result in done for finding in result.findings])
        results += done
        findings += found
        if (path / "__init__.py").is_file() and any(rule.code == "NPK490" for rule in rules):
            from npukit.migrate.callgraph import reaching

            findings += reaching(path, found)
    if trace:
        from npukit.migrate.trace import traced

        findings += traced(trace)
    title = ", ".join(str(path) for path in paths)
    base = folders[0].parent if len(paths) == 1 and not paths[0].exists() else None
    lines = sum(each.lines for each in results)
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


def _reason_aside(finding: Finding) -> Finding:
    """Files that cannot be read, each for a reason of its own, are told of together."""
    if finding.code != UNREADABLE:
        return finding
    what, _, reason = finding.what.partition(": ")
    return replace(finding, what=what, evidence=reason)


def _told_once(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Without what a more exact rule says about the same line: a name without counterpart is found by two."""
    exact = {
        (each.place.file, each.place.cell, each.place.line)
        for each in findings
        if each.place and each.code.startswith(("NPK2", "NPK40"))
    }
    return tuple(
        each
        for each in findings
        if each.fixable
        or not each.code.startswith("NPK1")
        or each.place is None
        or (each.place.file, each.place.cell, each.place.line) not in exact
    )


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
