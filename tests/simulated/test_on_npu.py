"""Run tests/on_npu with `pytest --npu-sim`, in one process; its own report names what failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "on_npu"
COMMAND = [sys.executable, "-m", "pytest", "--npu-sim=2", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]


def run(*tests: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    result = subprocess.run([*COMMAND, *map(str, tests)], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_on_npu() -> None:
    run(FOLDER)


def test_refusals_and_hf32() -> None:
    tests = FOLDER / "test_refusals.py", FOLDER / "test_hf32.py"
    assert "skipped" not in run(*tests, NPUKIT_SIM_REFUSALS="on", NPUKIT_SIM_HF32="on")
