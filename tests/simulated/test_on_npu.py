"""Run tests/on_npu with `pytest --npu-sim`, in one process; its own report names what failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "on_npu"


def test_on_npu() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--npu-sim=2",
        str(FOLDER),
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
