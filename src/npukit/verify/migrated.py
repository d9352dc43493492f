"""The migration between two folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from npukit.migrate.change import Change
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import Migration, migrate


def migration_between(before: Path, after: Path) -> Migration:
    """The migration of `before` in the style that is most similar to `after`, with the files of `after`.

    >>> write_report(migration_between(Path("project"), Path("migrated")), Path("report.html"))
    """
    migrations = [migrate(before, Goal(style)) for style in Style]
    nearest = max(
        migrations,
        key=lambda migration: sum(change.after == _now(change, before, after) for change in migration.changes),
    )
    changes = (replace(change, after=_now(change, before, after)) for change in nearest.changes)
    return replace(nearest, changes=tuple(change for change in changes if change.after != change.before))


def _now(change: Change, before: Path, after: Path) -> str:
    path = after / change.path.relative_to(before)
    return path.read_bytes().decode(change.encoding, "replace") if path.is_file() else change.before
