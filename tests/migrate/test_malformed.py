"""Malformed files: each a finding of analyze and of migrate, none a crash, none changed; the good one is still done."""

from __future__ import annotations

import runpy
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from npukit.migrate import journal
from npukit.migrate.analysis import analyze
from npukit.migrate.migration import migrate

_MADE = runpy.run_path(str(Path(__file__).with_name("malformed.py")))
FILES: dict[str, bytes] = _MADE["files"]()
NAMES = sorted([*FILES, *_MADE["NO_FILES"]])


@dataclass(frozen=True)
class Outcome:
    analyzed: Counter[str]
    migrated: Counter[str]
    changed: list[str]
    after: dict[str, bytes]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("malformed")
    _MADE["write"](folder)
    (folder / "good.py").write_text(_MADE["CODE"])
    analysis = analyze([folder])
    migration = migrate(folder)
    journal.write_in_place(migration, allow_dirty=True)
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    analyzed, migrated = (
        Counter(finding.place.file.name for finding in findings if finding.code == "NPK001" and finding.place)
        for findings in (analysis.findings, migration.left)
    )
    return Outcome(analyzed, migrated, [change.path.name for change in migration.changes], after)


def test_there_are_300() -> None:
    assert len(NAMES) >= 300


@pytest.mark.parametrize("name", NAMES)
def test_a_malformed_file_is_one_finding_and_stays(outcome: Outcome, name: str) -> None:
    assert (outcome.analyzed[name], outcome.migrated[name]) == (1, 1)
    assert outcome.after.get(name) == FILES.get(name)


def test_the_good_file_among_them_is_migrated(outcome: Outcome) -> None:
    assert outcome.changed == ["good.py"]
    assert b"DEVICE" in outcome.after["good.py"]
