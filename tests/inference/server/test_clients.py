"""The benchmark of many clients, for a second: no wrong, mixed or lost answer, and an end that loses none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_many_clients_at_once() -> None:
    command = [sys.executable, "-m", "benchmarks.serve_clients", "--clients", "6", "--seconds", "1"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    counts = dict(line.rsplit(maxsplit=1) for line in result.stdout.splitlines() if line and line[-1].isdigit())
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(counts["answers"]) and int(counts["streams"]) and counts["wrong"] == "0"
