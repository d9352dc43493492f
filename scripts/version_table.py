"""Write the facts of one version into a table whose other columns are versions (see npukit.facts.version_table)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from npukit.facts.versions import key

HOLDS = "x"


def write_version(path: Path, names: Sequence[str], version: str, facts: Iterable[Sequence[str]]) -> None:
    """Replace the column of a version; a fact that holds for no version any more goes.

    >>> write_version(Path("operators.csv"), ["op", "kernel"], "2.13", [("abs", "npu")])
    """
    holds: dict[tuple[str, ...], set[str]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        for row in rows:
            marked = {known for known, mark in zip(header[len(names) :], row[len(names) :], strict=True) if mark}
            holds[tuple(row[: len(names)])] = marked - {version}
    for fact in facts:
        holds.setdefault(tuple(fact), set()).add(version)
    versions = sorted(set().union(*holds.values()), key=key)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, *versions])
        for fact, marked in sorted(holds.items()):
            if marked:
                writer.writerow([*fact, *(HOLDS if known in marked else "" for known in versions)])
    print(f"{path}: {path.stat().st_size // 1024} KiB")
