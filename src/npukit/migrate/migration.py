"""Migrate a project: turn findings into edits and edits into new file contents.

Nothing is written here. Every file is parsed again after its edits, and an edit that would break a file is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from npukit.errors import NpukitError
from npukit.migrate.change import Change, with_moved_places
from npukit.migrate.engine import (
    FileResult,
    OnProgress,
    check_file,
    ignore_progress,
    on_all_cores,
    open_file,
    unreadable_finding,
)
from npukit.migrate.goal import Goal
from npukit.migrate.layout import with_layout
from npukit.migrate.partial_tree import require_parsable
from npukit.migrate.patches import functions_patched_by_tests
from npukit.migrate.rule import Rule
from npukit.migrate.selection import Selection
from npukit.migrate.styles import style_of
from npukit.migrate.torch_imports import remove_unused_imports
from npukit.migrate.torch_npu_loading import load_torch_npu_once
from npukit.report import Finding, by_hand
from npukit.source import Document, Edit, Unreadable

_Apply = Callable[[Document, list[Finding]], tuple[Document, list[Finding]]]
_ROUNDS = 8
_OWN_WORDS = re.compile(
    r"""["'](?:torch\.)?(?:cuda|nccl)[\w.:]*["']|\bGradScaler\b"""
)  # written by rules, which leave these alone afterwards


@dataclass(frozen=True)
class Migration:
    """What migrating a project does: the changes, and the findings that no change fixes."""

    root: Path
    goal: Goal
    changes: tuple[Change, ...]
    left: tuple[Finding, ...]  # not fixed by any change; places are those after the changes
    files: int
    lines: int

    @property
    def by_hand(self) -> list[Finding]:
        """The errors and warnings that a person has to deal with."""
        return by_hand(self.left)

    @property
    def fixed(self) -> tuple[Finding, ...]:
        return tuple(finding for change in self.changes for finding in change.fixed)


def migrate(
    path: Path,
    goal: Goal | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    on_progress: OnProgress = ignore_progress,
) -> Migration:
    """Work out how to migrate a project or a single file, without writing anything.

    >>> print(migrate(Path("project")).changes[0].diff(Path("project")))
    """
    if not path.exists():
        raise NpukitError(f"There is no {path}: name a project folder or a file.")
    root = path if path.is_dir() else path.parent
    goal = (goal or Goal()).for_project(root)
    selection = Selection.of(path, select, ignore)
    rules = selection.rules(goal.target, goal.distributed)
    if not any(rule.fixes for rule in rules):
        raise NpukitError("migrate applies none of the selected rules: use `npukit analyze` for them.")
    codes = tuple(rule.code for rule in rules)
    files = selection.files(path)
    goal = replace(goal, patched=functions_patched_by_tests(files))
    done = on_all_cores(partial(_migrate_path, codes=codes, goal=goal, root=root), files, on_progress)
    changes = tuple(change for change, _ in done if change)
    left = tuple(finding for _, result in done for finding in result.findings)
    if goal.portable and not goal.loads_torch_npu:
        changes, left = load_torch_npu_once(changes, left, root)
    return Migration(root, goal, changes, left, len(files), sum(result.lines for _, result in done))


def _migrate_path(path: Path, codes: tuple[str, ...], goal: Goal, root: Path) -> tuple[Change | None, FileResult]:
    """Return the change to one file, or None, and what is left to do in it."""
    opened = open_file(path, codes, goal.target, root)
    if isinstance(opened, FileResult):
        return None, opened
    document, rules, lines = opened
    try:
        change, left = migrate_document(document, [rule for rule in rules if not rule.distributes], goal)
        last = [rule for rule in rules if rule.distributes]
        if last and document.kind == "python":
            change, left = _migrate_again(change, left, document, last, goal)
    except Unreadable as error:
        return None, FileResult(path, (unreadable_finding(path, str(error), error.line, error.cell),), lines)
    return change, FileResult(path, left, lines)


def _migrate_again(
    change: Change | None, left: tuple[Finding, ...], document: Document, rules: Sequence[Rule], goal: Goal
) -> tuple[Change | None, tuple[Finding, ...]]:
    """Migrate a file a second time with further rules, which see what the first ones wrote."""
    now = replace(document, text=change.after) if change else document
    again, more = migrate_document(now, rules, goal)
    if again is None:
        return change, (*left, *more)
    left = with_moved_places(left, now, replace(now, text=again.after))
    if change:
        again = replace(again, before=change.before, fixed=(*change.fixed, *again.fixed))
    return again, (*left, *more)


def migrate_document(
    document: Document, rules: Sequence[Rule], goal: Goal
) -> tuple[Change | None, tuple[Finding, ...]]:
    """Return the change to one file, or None, and the findings that it does not fix."""
    try:
        return _migrated(document, rules, goal, _apply_all)
    except Unreadable:
        return _migrated(document, rules, goal, _apply_one_by_one)


def _migrated(
    document: Document, rules: Sequence[Rule], goal: Goal, do: _Apply
) -> tuple[Change | None, tuple[Finding, ...]]:
    findings = check_file(document, rules, goal)
    left = [finding for finding in findings if not finding.edits]
    fixing = [rule for rule in rules if rule.fixes]
    now = document
    fixed: list[Finding] = []
    for _ in range(_ROUNDS):
        fixable = [finding for finding in findings if finding.edits]
        after, done = do(now, _without_overlaps(fixable)) if fixable else (now, [])
        if after.text == now.text:
            left += [
                replace(finding, edits=()) for finding in fixable
            ]  # edits that cannot be applied are left to the user
            break
        fixed += done
        now = after
        if len(done) == len(fixable) and not _may_concern(fixing, done):
            break
        findings = check_file(now, fixing, goal)
    if now is document:
        return None, tuple(left)
    now = style_of(goal).finish(document, remove_unused_imports(document, now), goal)
    now = with_layout(document, now)
    require_parsable(document, now)
    change = Change(document.path, document.text, now.text, document.encoding, tuple(fixed))
    return change, with_moved_places(left, document, now)


def _may_concern(rules: Sequence[Rule], done: Sequence[Finding]) -> bool:
    """Return whether the rules may find something in what was just written, such as code that an edit copied."""
    words = {word.lower() for rule in rules for word in rule.words}
    written = _OWN_WORDS.sub("", "\n".join({edit.text for finding in done for edit in finding.edits})).lower()
    return any(word in written for word in words)


def _without_overlaps(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings whose edits do not overlap. One that replaces a whole expression wins over one inside it.

    Otherwise the next round would have to replace it, where the function may already mention NPUs and is left alone.
    """
    chosen: set[int] = set()
    taken: dict[Edit, None] = {}
    for at, finding in sorted(enumerate(findings), key=lambda item: -_replaced(item[1])):
        if not any(_overlap(edit, other) for edit in finding.edits if edit not in taken for other in taken):
            chosen.add(at)
            taken.update(dict.fromkeys(finding.edits))
    return [finding for at, finding in enumerate(findings) if at in chosen]


def _replaced(finding: Finding) -> int:
    """Return the length of the longest piece of text that a finding replaces."""
    return max(edit.end - edit.start for edit in finding.edits)


def _apply_all(document: Document, findings: list[Finding]) -> tuple[Document, list[Finding]]:
    """Apply the edits of all findings at once."""
    return document.edited(edit for finding in findings for edit in finding.edits), findings


def _apply_one_by_one(document: Document, findings: list[Finding]) -> tuple[Document, list[Finding]]:
    """Apply the findings one after the other, leaving out those whose edits would break the file."""
    chosen: list[Finding] = []
    taken: dict[Edit, None] = {}
    now = document
    for finding in findings:
        more = {**taken, **dict.fromkeys(finding.edits)}
        try:
            after = document.edited(more)
            after.must_parse()
        except Unreadable:
            continue
        now, taken = after, more
        chosen.append(finding)
    return now, chosen


def _overlap(one: Edit, other: Edit) -> bool:
    """Return whether two edits overlap. An insertion overlaps only if it falls inside a replaced range."""
    if one.start == one.end or other.start == other.end:  # an insertion only overlaps a replacement that it falls into
        return one.start < other.start < one.end or other.start < one.start < other.end
    return one.start < other.end and other.start < one.end
