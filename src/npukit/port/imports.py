"""Import the files that a migration changed, before and after it. Files that no longer import are restored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from npukit.launch.devices import Devices, Wanted, choose
from npukit.launch.run import SAFE_PATH
from npukit.migrate.journal import write_copy
from npukit.migrate.migration import Migration
from npukit.migrate.rule import described
from npukit.report.unfinished import temporary_folder
from npukit.source import Place

Outcome = Literal[
    "imports", "fails", "exits", "runs"
]  # exits: a script that requires arguments; runs: still running after 30 s of CPU time
_SECONDS = 1800
_ROUNDS = 3


@dataclass(frozen=True)
class Imported:
    """How a file imports before and after its migration, on one device."""

    file: str  # relative to the project
    device: str
    before: Outcome
    after: Outcome
    error: str  # after the migration, or before it if that already failed
    origin: str  # the file of the project in which the error arose
    stand_ins: tuple[str, ...]  # packages that are not installed and were replaced by stand-ins

    @property
    def broken(self) -> bool:
        return self.before in ("imports", "runs") and self.after not in ("imports", "runs")


@dataclass(frozen=True)
class ImportCheck:
    """A migration without the files that broke, and how the others import."""

    migration: Migration
    imported: tuple[Imported, ...]

    @property
    def put_back(self) -> list[Imported]:
        return [imported for imported in self.imported if imported.broken]


def check_imports(migration: Migration, source: Path) -> ImportCheck:
    """Import every Python file that the migration of `source` changes, on the CPU and on a simulated NPU.

    >>> check_imports(migrate(Path("project")), Path("project")).put_back
    []
    """
    results: list[Imported] = []
    with temporary_folder("check") as folder:
        before = folder / "before"
        write_copy(replace(migration, changes=()), source, before)
        files = dict.fromkeys(_python_files(migration), ())
        devices = [choose(Wanted.cpu), choose(Wanted.sim)]
        originals = [import_all(before, files, device) for device in devices]
        for number in range(_ROUNDS):  # other files may import a restored one
            after = folder / f"after{number}"
            write_copy(migration, source, after)
            now = [
                imported
                for device, original in zip(devices, originals, strict=True)
                for imported in _compare(after, _python_files(migration), device, original)
            ]
            broken = _to_blame([imported for imported in now if imported.broken], migration)
            results += broken.values() if broken else now
            if not broken:
                break
            migration = _without(migration, broken)
    return ImportCheck(migration, tuple(results))


class ImportResult(NamedTuple):
    """How a file imports on one device."""

    outcome: Outcome
    error: str
    origin: str
    stand_ins: tuple[str, ...]


def import_all(folder: Path, files: Mapping[str, Sequence[str]], devices: Devices) -> dict[str, ImportResult]:
    """How each file of a folder imports, with stand-ins for the packages listed with it.

    >>> import_all(Path("project"), {"train.py": ()}, choose("cpu"))
    {'train.py': ImportResult(outcome='imports', error='', origin='', stand_ins=())}
    """
    if not files:
        return {}
    argv = [sys.executable, *SAFE_PATH, "-m", "npukit.port.importing"]
    environment = {**devices.environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        argv, cwd=folder, env=environment, input=json.dumps(files), text=True, stdout=subprocess.PIPE, timeout=_SECONDS
    )
    answers = (json.loads(line) for line in done.stdout.splitlines())
    return {
        file: ImportResult(outcome, error, origin, tuple(packages))
        for file, outcome, error, origin, packages in answers
    }


def _python_files(migration: Migration) -> list[str]:
    files = (change.path.relative_to(migration.root).as_posix() for change in migration.changes)
    return [file for file in files if file.endswith(".py")]


def _compare(
    folder: Path, files: Sequence[str], devices: Devices, originals: Mapping[str, ImportResult]
) -> Iterator[Imported]:
    now = import_all(folder, {file: originals[file].stand_ins for file in files}, devices)
    for file, after in now.items():
        before = originals[file]
        shown = after if after.error else before
        yield Imported(file, str(devices), before.outcome, after.outcome, shown.error, shown.origin, before.stand_ins)


def _to_blame(broken: Sequence[Imported], migration: Migration) -> dict[str, Imported]:
    """The files to restore: those in which errors arose, if they were changed, or else those that fail."""
    changed = set(_python_files(migration))
    to_blame = ((imported.origin if imported.origin in changed else imported.file, imported) for imported in broken)
    return {name: replace(imported, file=name) for name, imported in to_blame}


def _without(migration: Migration, broken: Mapping[str, Imported]) -> Migration:
    """The migration without changes to these files, and a finding for each."""
    root = migration.root
    kept = tuple(change for change in migration.changes if change.path.relative_to(root).as_posix() not in broken)
    findings = tuple(
        described("NPK003").finding(
            Place(root / imported.file),
            f"the migrated file no longer imports on {imported.device}",
            evidence=imported.error,
        )
        for imported in broken.values()
    )
    return replace(migration, changes=kept, left=(*migration.left, *findings))
