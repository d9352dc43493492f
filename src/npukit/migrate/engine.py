"""One walk over each file: rules get the nodes they asked for, and answer with findings.

A file without any word that a rule looks for is never parsed. A file that cannot be read is a finding, and never stops
the others.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from npukit.children import die_with
from npukit.migrate import guards
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Check, Rule
from npukit.migrate.rules import all_rules, npk001_unreadable, npk002_broken_rule
from npukit.report import Finding, Severity
from npukit.source import Document, Place, PythonFile, Unreadable, read
from npukit.source.find import kind_of

_T = TypeVar("_T")
Tell = Callable[[int, int], None]
_Words = tuple[tuple[bytes, tuple[bytes, ...]], ...]  # each with the shorter ones in it
_IGNORE = re.compile(r"#\s*npukit:\s*ignore(?:\[([\w\s,]+)\])?")
_IMPORT = re.compile(rb"import[ \t]+([\w., \t]+)", re.ASCII)
_FROM = re.compile(rb"from[ \t]+([\w.]+)", re.ASCII)
_MANY = 200  # files; fewer are done sooner, and with less work, in this process
_MAX_BYTES = 8 << 20
_TELL_EVERY = 64


@dataclass(frozen=True)
class FileResult:
    """What the rules found in one file."""

    path: Path
    findings: tuple[Finding, ...] = ()
    lines: int = 0
    parsed: bool = False


def silent(done: int, total: int) -> None:
    """Tell nobody how far the work is."""


def run(
    files: Iterable[Path], rules: Sequence[Rule], goal: Goal, root: Path | None = None, tell: Tell = silent
) -> list[FileResult]:
    """Check every file, on all cores when there are many; `tell` hears how many are done of how many.

    >>> results = run(find([Path("project")]), all_rules(), Goal())
    """
    codes = tuple(rule.code for rule in rules)
    return on_all_cores(partial(_check_path, codes=codes, goal=goal, root=root), list(files), tell)


def on_all_cores(work: Callable[[Path], _T], paths: Sequence[Path], tell: Tell = silent) -> list[_T]:
    """work(path) of each path, in order."""
    workers = min(len(os.sched_getaffinity(0)), len(paths) // _MANY + 1)
    if workers == 1:
        return _one_by_one(work, paths, tell)
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(workers, initializer=_begin, initargs=(os.getpid(),)) as pool:
        return _counted(pool.map(work, paths, chunksize=16), len(paths), tell)


def _counted(results: Iterable[_T], total: int, tell: Tell) -> list[_T]:
    done = []
    for result in results:
        done.append(result)
        if len(done) % _TELL_EVERY == 0:
            tell(len(done), total)
    return done


def _begin(parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's way to end is not this process's
    gc.disable()


def _one_by_one(work: Callable[[Path], _T], paths: Sequence[Path], tell: Tell) -> list[_T]:
    """Without looking for cycles meanwhile: syntax trees have none, and are many objects to look at."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _counted(map(work, paths), len(paths), tell)
    finally:
        if was_enabled:
            gc.enable()


def _check_path(path: Path, codes: tuple[str, ...], goal: Goal, root: Path | None) -> FileResult:
    opened = open_file(path, codes, root)
    if isinstance(opened, FileResult):
        return opened
    document, rules, lines = opened
    try:
        return FileResult(path, check_file(document, rules, goal), lines, parsed=True)
    except Unreadable as error:
        return FileResult(path, (unreadable(path, str(error)),), lines)


def open_file(
    path: Path, codes: tuple[str, ...], root: Path | None
) -> FileResult | tuple[Document, Sequence[Rule], int]:
    """The file, the rules that have something to look for in it, its lines; a result where there is nothing to do."""
    prefilter, rules = _prepared(codes, _kinds(path))
    try:
        if path.stat().st_size > _MAX_BYTES and not _may_skip(path, prefilter):
            return FileResult(path, (unreadable(path, "larger than 8 MiB"),))
        data = path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b""
    except OSError as error:
        return FileResult(path, (unreadable(path, str(error.strerror)),))
    lines = data.count(b"\n") + 1
    if b"\0" in data:
        return FileResult(path, (unreadable(path, "binary data, or UTF-16"),), lines)
    lowered = data.lower()
    words = _present(prefilter, lowered)
    modules = _imported(data) - _own_modules(root)
    active = [rule for rule, looked_for in rules if rule.modules & modules or any(word in words for word in looked_for)]
    if not active:
        return FileResult(path, lines=lines)
    try:
        return read(path, data, root), active, lines
    except Unreadable as error:
        return FileResult(path, (unreadable(path, str(error)),), lines)


def _may_skip(path: Path, prefilter: _Words) -> bool:
    """Whether a large file has no word that a rule looks for; read piece by piece, it may be larger than memory."""
    overlap = max((len(word) for word, _ in prefilter), default=1)
    with path.open("rb") as file:
        end = b""
        while piece := file.read(_MAX_BYTES):
            if b"\0" in piece or _present(prefilter, (end + piece).lower()):
                return False
            end = piece[-overlap:]
    return True


def _kinds(path: Path) -> tuple[str, ...]:
    """What a file is to rules."""
    kind = kind_of(path) or ""
    return (kind, "setup") if path.name == "setup.py" else (kind,)


@lru_cache(maxsize=64)
def _prepared(
    codes: tuple[str, ...], kinds: tuple[str, ...]
) -> tuple[_Words, tuple[tuple[Rule, tuple[bytes, ...]], ...]]:
    """The words looked for in files of these kinds, each with shorter ones in it; and the rules, with theirs."""
    python = kinds[0] in ("python", "notebook")
    rules = []
    for rule in (rule for rule in all_rules() if rule.code in codes):
        as_text = any(kind in kinds for kind, _ in rule.text_checks)
        if as_text or (python and rule.checks):
            rules.append((rule, _lowered(rule.words + (rule.text_words if as_text else ()))))
    words = sorted({word for _, own in rules for word in own}, key=len)
    return tuple((word, tuple(each for each in words if each != word and each in word)) for word in words), tuple(rules)


def _present(words: _Words, text: bytes) -> set[bytes]:
    """The words that a text has. One with a shorter one in it that is missing need not be looked for."""
    found: set[bytes] = set()
    for word, parts in words:
        if all(part in found for part in parts) and word in text:
            found.add(word)
    return found


@lru_cache(maxsize=256)
def _lowered(words: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(word.lower().encode() for word in words)


def _imported(data: bytes) -> frozenset[str]:
    """The top-level modules that a file may import, without parsing it."""
    plain = (words[0] for names in _IMPORT.findall(data) for name in names.split(b",") if (words := name.split()))
    return frozenset(name.partition(b".")[0].decode() for name in (*plain, *_FROM.findall(data)))


@lru_cache(maxsize=8)
def _own_modules(root: Path | None) -> frozenset[str]:
    """The modules and packages at the top of a project: Megatron-LM's own megatron is no library that it uses."""
    found = root.iterdir() if root else ()
    return frozenset(path.stem for path in found if path.suffix == ".py" or path.is_dir())


def check_file(document: Document, rules: Sequence[Rule], goal: Goal) -> tuple[Finding, ...]:
    """All findings of the rules in one file, in its order, without those that a comment in the file ignores."""
    findings: list[Finding] = []
    kinds = _kinds(document.path)
    for check in (check for rule in rules for kind, check in rule.text_checks if kind in kinds):
        try:
            findings.extend(check(document, goal))
        except Exception as error:
            findings.append(_broken(check, error, document.path, document))
    checks: dict[type[ast.AST], list[Check]] = defaultdict(list)
    for rule in rules:
        for node_type, check in rule.checks:
            checks[node_type].append(check)
    file = document.python if checks else None
    if file is not None:
        for node in file.nodes:
            for check in checks.get(type(node), ()):
                try:
                    findings.extend(check(node, file, goal))
                except Exception as error:
                    findings.append(_broken(check, error, document.path, node))
    kept = [_where_cuda_is(finding, file) for finding in findings if not _ignored(finding, document)]
    return tuple(sorted(_without_superseded(kept, rules), key=lambda finding: (_line(finding), finding.code)))


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


def _where_cuda_is(finding: Finding, file: PythonFile | None) -> Finding:
    """What is wrong in code that runs only on CUDA is worth a note."""
    place = finding.place
    if file is None or place is None or place.cell is not None or finding.edits or finding.code < "NPK1":
        return finding
    if finding.severity is Severity.note or "cuda" not in file.text:
        return finding
    inside = any(first <= place.line <= last for first, last in guards.lines_for_cuda(file))
    return replace(finding, severity=Severity.note) if inside else finding


def _broken(check: Check, error: Exception, path: Path, node: object) -> Finding:
    """A check that fails is a finding, so that the others and the other files are still done."""
    what = f"{check.__module__.rsplit('.', 1)[-1]} failed here: {type(error).__name__}: {error}"
    return npk002_broken_rule.rule.finding(Place(path, getattr(node, "lineno", 1)), what)


def _ignored(finding: Finding, document: Document) -> bool:
    """Whether the finding's line ends with `# npukit: ignore` or `# npukit: ignore[CODE, ...]`."""
    place = finding.place
    if place is None or "npukit:" not in document.text:
        return False
    line = place.line
    if document.book and place.cell is not None:
        line += document.book.first_line(place.cell) - 1
    match = _IGNORE.search(next(islice(document.code.split("\n"), line - 1, None), ""))
    return bool(match) and (match[1] is None or finding.code in re.split(r"[\s,]+", match[1]))  # type: ignore[index]


def _line(finding: Finding) -> int:
    return finding.place.line if finding.place else 0


def unreadable(path: Path, reason: str) -> Finding:
    """The finding that a file could not be read, and so was not checked."""
    return npk001_unreadable.rule.finding(Place(path), "this file could not be read", evidence=reason)
