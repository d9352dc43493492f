"""Walk over each file once, hand its nodes to the rules that asked for them, and collect the findings.

A file that contains none of the words that the rules look for is never parsed. A file that cannot be read becomes a
finding and does not stop the others.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from npukit.children import die_with
from npukit.facts.target import Target
from npukit.migrate.decision import is_cuda_only_line
from npukit.migrate.goal import Goal
from npukit.migrate.prefilter import active_rules, kinds_of, may_skip
from npukit.migrate.rule import Check, Rule, described
from npukit.migrate.rules import all_rules
from npukit.report import Finding, Severity
from npukit.source import Document, Place, PythonFile, Unreadable, read
from npukit.source.cache import forget

_T = TypeVar("_T")
OnProgress = Callable[[int, int], None]
_IGNORE = re.compile(r"#\s*npukit:\s*ignore(?:\[([\w\s,]+)\])?")
_MANY = 200  # files; a pool of processes does not pay off for fewer
_MAX_BYTES = 8 << 20
_REPORT_EVERY = 64


@dataclass(frozen=True)
class FileResult:
    """The findings of all rules in one file."""

    path: Path
    findings: tuple[Finding, ...] = ()
    lines: int = 0
    parsed: bool = False


def ignore_progress(done: int, total: int) -> None:
    """Do nothing; used where nobody wants to see progress."""


def run(
    files: Iterable[Path],
    rules: Sequence[Rule],
    goal: Goal,
    root: Path | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[FileResult]:
    """Check every file, on all cores if there are many. `on_progress` gets the number of files done and the total.

    >>> results = run(find([Path("project")]), all_rules(), Goal())
    """
    codes = tuple(rule.code for rule in rules)
    return on_all_cores(partial(_check_path, codes=codes, goal=goal, root=root), list(files), on_progress)


def on_all_cores(
    work: Callable[[Path], _T], paths: Sequence[Path], on_progress: OnProgress = ignore_progress
) -> list[_T]:
    """The results of work(path) for each path, in order, from the files as they are now."""
    forget()
    workers = min(len(os.sched_getaffinity(0)), len(paths) // _MANY + 1)
    if workers == 1:
        return _one_by_one(work, paths, on_progress)
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(os.getpid(),)) as pool:
        return _counted(pool.map(work, paths, chunksize=16), len(paths), on_progress)


def _counted(results: Iterable[_T], total: int, on_progress: OnProgress) -> list[_T]:
    done = []
    for result in results:
        done.append(result)
        if len(done) % _REPORT_EVERY == 0:
            on_progress(len(done), total)
    return done


def _begin(parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # do not inherit the parent's handler
    gc.disable()


def _one_by_one(work: Callable[[Path], _T], paths: Sequence[Path], on_progress: OnProgress) -> list[_T]:
    """Process one file after the other. The garbage collector is off: syntax trees are many objects without cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _counted(map(work, paths), len(paths), on_progress)
    finally:
        forget()  # release the trees before the collector visits them
        if was_enabled:
            gc.enable()


def _check_path(path: Path, codes: tuple[str, ...], goal: Goal, root: Path | None) -> FileResult:
    opened = open_file(path, codes, goal.target, root)
    if isinstance(opened, FileResult):
        return opened
    document, rules, lines = opened
    try:
        return FileResult(path, check_file(document, rules, goal), lines, parsed=True)
    except Unreadable as error:
        return FileResult(path, (unreadable_finding(path, str(error), error.line, error.cell),), lines)


def open_file(
    path: Path, codes: tuple[str, ...], target: Target, root: Path | None
) -> FileResult | tuple[Document, Sequence[Rule], int]:
    """Return the file, the rules that may find something and its number of lines, or a result if none may."""
    try:
        is_large = path.stat().st_size > _MAX_BYTES
        if is_large and not may_skip(path, codes, target):
            return FileResult(path, (unreadable_finding(path, "larger than 8 MiB"),))
        data = b"" if is_large else path.read_bytes()
    except OSError as error:
        return FileResult(path, (unreadable_finding(path, str(error.strerror)),))
    lines = data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    if b"\0" in data:
        return FileResult(path, (unreadable_finding(path, "binary data, or UTF-16"),), lines)
    active = active_rules(path, data, codes, target, root)
    if not active:
        return FileResult(path, lines=lines)
    try:
        return read(path, data, root), active, lines
    except Unreadable as error:
        return FileResult(path, (unreadable_finding(path, str(error), error.line, error.cell),), lines)


def check_file(document: Document, rules: Sequence[Rule], goal: Goal) -> tuple[Finding, ...]:
    """Return the findings of the rules in one file, in the file's order, without those that a comment suppresses."""
    findings: list[Finding] = []
    kinds = kinds_of(document.path)
    for check in (check for rule in rules for kind, check in rule.text_checks if kind in kinds):
        try:
            findings.extend(check(document, goal))
        except Exception as error:
            findings.append(_broken(check, error, document.path, document))
    python_rules = [rule for rule in rules if rule.checks or rule.call_checks]
    file = document.python if python_rules else None
    for node, check in _matches(file, python_rules, goal.target) if file else ():
        try:
            findings.extend(check(node, file, goal))
        except Exception as error:
            findings.append(_broken(check, error, document.path, node))
    if "npukit:" in document.text:
        findings = [finding for finding in findings if not _ignored(finding, document)]
    if file and "cuda" in file.text:
        findings = [_where_cuda_is(finding, file) for finding in findings]
    return tuple(sorted(_without_superseded(findings, rules), key=_order))


def _matches(file: PythonFile, rules: Sequence[Rule], target: Target) -> Iterator[tuple[ast.AST, Check]]:
    """Yield each node together with each check that wants to see it."""
    for rule in rules:
        for node_type, words, check in rule.checks:
            for node in file.saying(node_type, words) if words else file.of_type(node_type):
                yield node, check
    by_name = _by_name(target)
    chosen = set(rules)
    for node in file.of_type(ast.Call):
        for rule, check in _called(node.func, by_name, file):
            if rule in chosen:
                yield node, check


_CallChecks = Mapping[str, tuple[tuple[Rule, Check], ...]]


@lru_cache(maxsize=8)
def _by_name(target: Target) -> _CallChecks:
    """The checks of calls, by the last name of what is called."""
    checks: dict[str, tuple[tuple[Rule, Check], ...]] = defaultdict(tuple)
    for rule in all_rules():
        for names, check in rule.call_checks:
            for name in names(target) if callable(names) else names:
                checks[name] += ((rule, check),)
    return dict(checks)


def _called(func: ast.expr, by_name: _CallChecks, file: PythonFile) -> Iterable[tuple[Rule, Check]]:
    """The checks for a called name and for what it is an alias of, each once."""
    if type(func) is ast.Attribute:
        return by_name.get(func.attr, ())
    if type(func) is not ast.Name:
        return ()
    if func.id not in file.names.aliases:
        return by_name.get(func.id, ())
    names = (func.id, *sorted(file.names.aliases[func.id]))
    return dict.fromkeys(check for name in names for check in by_name.get(name, ()))


def _without_superseded(findings: Sequence[Finding], rules: Sequence[Rule]) -> Iterator[Finding]:
    """Without findings that have no edit, where another rule says more about the same line."""
    superseded = {
        (code, finding.place and (finding.place.cell, finding.place.line))
        for rule in rules
        if rule.supersedes
        for finding in findings
        if finding.code == rule.code
        for code in rule.supersedes
    }
    for finding in findings:
        place = finding.place and (finding.place.cell, finding.place.line)
        if finding.fixable or (finding.code, place) not in superseded:
            yield finding


def _where_cuda_is(finding: Finding, file: PythonFile) -> Finding:
    """Reduce findings in code that runs only on CUDA to notes."""
    place = finding.place
    if place is None or place.cell is not None or finding.edits or finding.code < "NPK1":
        return finding
    if finding.severity is Severity.note:
        return finding
    return replace(finding, severity=Severity.note) if is_cuda_only_line(place.line, file) else finding


def _broken(check: Check, error: Exception, path: Path, node: object) -> Finding:
    """A check that raises becomes a finding, so that the other checks and files are still done."""
    what = f"{check.__module__.rsplit('.', 1)[-1]} failed here: {type(error).__name__}: {error}"
    return described("NPK002").finding(Place(path, getattr(node, "lineno", 1)), what)


def _ignored(finding: Finding, document: Document) -> bool:
    """Whether the finding's line ends with `# npukit: ignore` or `# npukit: ignore[CODE, ...]`."""
    place = finding.place
    if place is None:
        return False
    line = place.line
    if document.book and place.cell is not None:
        line += document.book.first_line(place.cell) - 1
    match = _IGNORE.search(next(islice(document.code.split("\n"), line - 1, None), ""))
    return bool(match) and (match[1] is None or finding.code in re.split(r"[\s,]+", match[1]))  # type: ignore[index]


def _order(finding: Finding) -> tuple[int, str, int]:
    place = finding.place
    return (place.line, finding.code, place.column) if place else (0, finding.code, 0)


def unreadable_finding(path: Path, reason: str, line: int = 1, cell: int | None = None) -> Finding:
    """The finding that a file could not be read, and so was not checked."""
    return described("NPK001").finding(Place(path, line, cell=cell), "this file could not be read", evidence=reason)
