"""What many tests need: Python code run in a process of its own, on simulated NPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from npukit.simulate import environment

os.environ.setdefault("OMP_NUM_THREADS", "1")

RunPython = Callable[..., str]


@pytest.fixture(scope="session")
def simulated() -> RunPython:
    """`simulated(code, devices=2, ...)` runs code on simulated NPUs and returns what it printed.

    The options are those of `npukit.simulate.environment`; code that fails fails the test, with all it said.
    """

    def run(code: str, *arguments: str, timeout: float = 300, env: dict[str, str] | None = None, **options: Any) -> str:
        command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        variables = {**environment(**options), **(env or {})}
        result = subprocess.run(command, env=variables, timeout=timeout, capture_output=True, text=True)
        assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout.strip()

    return run
