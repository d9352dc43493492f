"""Write a migration to a branch with one commit per rule, which contains what that rule adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.migrate.change import Change
from npukit.migrate.migration import Migration, migrate_document
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules
from npukit.port.repository import commit
from npukit.report.report import counted
from npukit.report.writing import write_bytes
from npukit.source import Unreadable, read


@dataclass(frozen=True)
class Commit:
    """The changes of one rule."""

    name: str  # the commit's hash
    code: str
    title: str
    places: int
    files: int


def commit_by_rule(migration: Migration) -> Iterator[Commit]:
    """Write the migration into a worktree, rule by rule, and commit each.

    >>> [each.code for each in commit_by_rule(migrate(worktree))]
    ['NPK101', 'NPK110']
    """
    codes = {finding.code for finding in migration.fixed}
    rules = [rule for rule in all_rules() if rule.code in codes]
    for number, rule in enumerate(rules, 1):
        changed = []
        for change in migration.changes:
            is_last = number == len(rules)
            text = change.after if is_last else _with(rules[:number], change, migration)
            if write_if_new(change.path, text.encode(change.encoding)):
                changed.append(change.path)
        if changed:
            places = sum(finding.code == rule.code for finding in migration.fixed)
            name = commit(migration.root, changed, message_of(rule, places, len(changed)))
            yield Commit(name, rule.code, _title(rule), places, len(changed))


def write_if_new(path: Path, data: bytes) -> bool:
    if path.read_bytes() == data:
        return False
    write_bytes(path, data)
    return True


def _with(rules: Sequence[Rule], change: Change, migration: Migration) -> str:
    """A file as these rules alone would leave it; unchanged if they find nothing."""
    try:
        document = read(change.path, change.before.encode(change.encoding), migration.root)
        first, _ = migrate_document(document, [rule for rule in rules if not rule.distributes], migration.goal)
    except Unreadable:
        return change.before
    return first.after if first else change.before


def message_of(rule: Rule, places: int, files: int) -> str:
    """A commit message for a rule."""
    return (
        f"{_title(rule)}\n\n{rule.why}\n\n{counted(places, 'place')} in {counted(files, 'file')}, by npukit's rule "
        f"{rule.code} ({rule.name})."
    )


def _title(rule: Rule) -> str:
    return rule.doc.split("\n", 1)[0].rstrip(".")
