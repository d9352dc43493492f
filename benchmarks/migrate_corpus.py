"""Migrate checkouts of other people's projects and count what must not happen.

python benchmarks/migrate_corpus.py DIR... [--style npu]

One row a project: lines, files, files touched, places rewritten and left, files that parsed before and do not after,
files that a second run changes, files touched without a CUDA reference, CPU seconds, lines per CPU-second, and that
against the vendor's converter, which was measured at 80 lines per CPU-second.
"""

from __future__ import annotations

import argparse
import ast
import re
import resource
import shutil
import tempfile
from pathlib import Path

from npukit.migrate import journal
from npukit.migrate.migration import Migration, migrate
from npukit.migrate.target import Style, Target

VENDOR_LINES_PER_SECOND = 80
_REFERENCE = re.compile(r"cuda|nccl|apex", re.IGNORECASE)


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(folder: Path, target: Target) -> tuple[Migration, float]:
    start = cpu_seconds()
    return migrate(folder, target), cpu_seconds() - start


def row(folder: Path, target: Target) -> tuple[str, list[int], float]:
    first, seconds = timed(folder, target)
    python = [change for change in first.changes if change.path.suffix == ".py"]
    broken = sum(not parses(change.after) for change in python)
    needless = sum(not _REFERENCE.search(change.before) for change in first.changes)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, "copy")
        journal.write_copy(first, folder, copy)
        again = len(migrate(copy, target).changes)
        shutil.rmtree(copy)
    counts = [first.lines, first.files, len(first.changes), len(first.fixed), len(first.left), broken, again, needless]
    return folder.name, counts, seconds


def show(name: str, counts: list[int], seconds: float) -> None:
    speed = counts[0] / seconds
    figures = [*(f"{count:,}" for count in counts), f"{seconds:.2f}", f"{speed:,.0f}"]
    print(f"| {name} | {' | '.join(figures)} | {speed / VENDOR_LINES_PER_SECOND:,.0f}x |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--style", choices=[style.value for style in Style], default="portable")
    arguments = parser.parse_args()
    print(
        "| project | lines | files | touched | places | left | broken | again | needless | CPU s | lines/s | vendor |"
    )
    print("|---|" + "---:|" * 11)
    rows = []
    for folder in arguments.folders:
        rows.append(row(folder, Target(Style(arguments.style))))
        show(*rows[-1])
    show(
        "all", [sum(column) for column in zip(*(counts for _, counts, _ in rows), strict=True)], sum(r[2] for r in rows)
    )


if __name__ == "__main__":
    main()
