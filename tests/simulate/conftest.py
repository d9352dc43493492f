"""The simulated CANN runtime, called as torch_npu calls it; no torch here, each test in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.simulate import environment

PREAMBLE = "import os, sys, threading, time\nfrom acl import *\ncall('aclInit', None)\ncall('aclrtSetDevice', 0)\n"
RunAcl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def machine() -> dict[str, str]:
    return {**environment(devices=2), "NPUKIT_SIM_OPERATORS": "", "PYTHONPATH": str(Path(__file__).parent)}


@pytest.fixture
def acl(machine: dict[str, str]) -> RunAcl:
    """Run code against the runtime; it must succeed unless another exit code is named."""

    def run(
        code: str, *arguments: str, exit_code: int = 0, prepared: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", (PREAMBLE if prepared else "") + textwrap.dedent(code), *arguments]
        result = subprocess.run(command, env={**machine, **variables}, timeout=60, capture_output=True, text=True)
        assert result.returncode == exit_code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run
