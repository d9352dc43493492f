"""Another torch_npu than the installed torch has, in an environment beside the user's; its wheels are tiny ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.simulate import other_torch, versions

OTHER = next(version for version in versions.TESTED if version != versions.installed())
# pydantic is the user's: the environment itself has only torch and numpy.
SCRIPT = "import pydantic\nfrom importlib.metadata import version as v\nprint(v('torch'), v('torch_npu'), v('numpy'))\n"


def run_script(torch_npu: str, world: Path) -> subprocess.CompletedProcess[str]:
    (world / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--torch-npu", torch_npu]
    return subprocess.run([*command, str(world / "script.py")], capture_output=True, text=True)


def test_a_script_runs_with_that_torch_and_the_users_packages(small: Path) -> None:
    result = run_script(OTHER, small)
    assert result.stdout == f"{OTHER} {OTHER}.post2 1.26.4\n", result.stderr


def test_an_interrupted_environment_is_made_again(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = other_torch.environment_python(OTHER)
    (python.parents[1] / other_torch.READY).unlink()
    left_behind = python.parents[1] / "left behind"
    left_behind.touch()
    assert other_torch.environment_python(OTHER) == python
    assert not left_behind.exists() and (python.parents[1] / other_torch.READY).exists()
    monkeypatch.setenv("PIP_FIND_LINKS", str(small / "gone"))
    assert other_torch.environment_python(OTHER) == python, "once made it needs no network"


def test_without_network_nothing_is_left(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(small / "gone"))
    with pytest.raises(NpukitError):
        other_torch.environment_python(OTHER)
    assert not [*(small / "cache" / "environments").glob("*")]


def test_this_torch_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(os, "execve", lambda *command: started.append(command))
    monkeypatch.setattr(other_torch, "environment_python", lambda version: Path("/other/python"))
    other_torch.switch_to(versions.installed(), "module", [])
    assert started == []
    other_torch.switch_to(OTHER, "module", [])
    assert started, "another torch is another process"


def test_a_version_may_lack_its_last_number() -> None:
    assert versions.supported("2.7") == "2.7.1"
    with pytest.raises(NpukitError, match=r"2\.0\.1.*2\.7\.1"):
        versions.supported("2.0.1")


def test_a_python_of_the_right_version_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert other_torch.find_python([ours, "3.8"]).path == sys.executable
    other = "3.10" if ours != "3.10" else "3.11"
    shim = tmp_path / f"python{other}"
    shim.write_text("#!/bin/sh\necho /opt/python/bin/python3\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert other_torch.find_python([other]) == other_torch.Interpreter("/opt/python/bin/python3", other)
    shim.write_text("#!/bin/sh\nexit 127\n")
    with pytest.raises(NpukitError, match=f"needs Python {other}"):
        other_torch.find_python([other, "3.8"])
