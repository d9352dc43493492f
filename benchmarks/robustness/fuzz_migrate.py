"""Migrate programs made at random, with new seeds, for a given time; keep what fails for the tests to replay.

python -m benchmarks fuzz_migrate [--seconds 60] [--keep tests/data/fuzzed]

Each failure is reduced to the shortest program that fails the same way, and written to a file of its own. Ends with
code 1 if there was one.
"""

from __future__ import annotations

import hashlib
import runpy
import secrets
import time
from pathlib import Path

from benchmarks import ROOT
from hypothesis import HealthCheck, Verbosity, given, seed, settings
from hypothesis import strategies as st

from npukit.migrate.goal import Style

TESTS = ROOT / "tests"
MADE = runpy.run_path(str(TESTS / "migrate" / "programs.py"))
BATCH = 200  # programs of one seed


def failure(number: int) -> tuple[str, str] | None:
    """The shortest failing program that this seed leads to, and what is wrong with it."""
    failures: list[tuple[str, str]] = []

    @seed(number)
    @settings(
        max_examples=BATCH,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(MADE["PROGRAMS"], st.sampled_from(list(Style)), st.sampled_from(["", "1.8", "1.13", "2.5", "2.7"]))
    def settles(program: str, style: Style, torch: str) -> None:
        trouble = MADE["trouble"](program, style, torch)
        if trouble is not None:
            failures.append((program, f"{style.value}, torch {torch or 'of the target'}: {trouble}"))
            raise AssertionError

    try:
        settles()
    except AssertionError:
        return failures[-1]  # the last one tried is the shortest
    return None


def main(seconds: float = 60, keep: Path = TESTS / "data" / "fuzzed") -> int:
    batches, kept, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number = secrets.randbits(32)
        batches += 1
        if failed := failure(number):
            program, trouble = failed
            file = keep / f"{hashlib.sha256(program.encode()).hexdigest()[:12]}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(program, encoding="utf-8")
            kept += 1
            print(f"seed {number}: {file}\n{program}\n{trouble}\n", flush=True)
    print(f"{batches * BATCH:,} programs or fewer, {kept} failures")
    return 1 if kept else 0
