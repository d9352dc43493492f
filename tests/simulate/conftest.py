"""Two worlds: the simulated CANN runtime, called as torch_npu calls it, and one in which set-up is quick."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.simulate import environment, versions

PREAMBLE = "import os, sys, threading, time\nfrom acl import *\ncall('aclInit', None)\ncall('aclrtSetDevice', 0)\n"
TORCH = importlib.metadata.version("torch").split("+")[0]
OTHER_TORCH = next(version for version in versions.TESTED if version != TORCH)
COMPILER = """#!/bin/sh
echo "$@" >> "$COMPILER_LOG"
sleep 0.05
while [ "$1" != "-o" ]; do shift; done
echo compiled > "$2"
"""
RunAcl = Callable[..., subprocess.CompletedProcess[str]]


def write_wheel(folder: Path, name: str, version: str) -> None:
    """A wheel of one empty module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A world where set-up is quick: an empty cache, a wheel of one file, compilers that only write their output."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in (f"{TORCH}.post1", f"{versions.NEWER_HEADERS}.post9", f"{OTHER_TORCH}.post2"):
        write_wheel(wheels, "torch_npu", version)
    write_wheel(wheels, "torch", OTHER_TORCH)
    write_wheel(wheels, "numpy", "1.26.4")
    for compiler in ("cc", "c++"):
        script = tmp_path / compiler
        script.write_text(COMPILER)
        script.chmod(0o755)
        monkeypatch.setenv("CC" if compiler == "cc" else "CXX", str(script))
    monkeypatch.setenv("COMPILER_LOG", str(tmp_path / "compiler.log"))
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return tmp_path


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
        result = subprocess.run(command, env={**machine, **variables}, capture_output=True, text=True)
        assert result.returncode == exit_code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run
