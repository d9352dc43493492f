"""What people type to start a program is understood, or refused before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.launch.commands import check_command, devices_asked, is_shell_script, python_arguments
from npukit.verify.started import is_of_project, main_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "pkg/train.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 4 \\\n  train.py\n")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("python train.py --devices 8", 1),
        ("python -m pkg.train", 1),
        ("torchrun --standalone --nproc_per_node=2 train.py", 2),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", 2),
        ("accelerate launch --num_processes 2 train.py", 2),
        ("accelerate launch train.py", 1),
        ("npukit run train.py", 1),
        ("npukit launch --devices 2 train.py", 2),
        ("bash run.sh", 4),
        ("bash -e run.sh", 4),
        ("./run.sh", 4),
        ("make train", 1),
    ],
)
def test_launchers_are_taken(project: Path, line: str, devices: int) -> None:
    check_command(line.split(), project)
    assert devices_asked(line.split(), project) == devices
    computes_itself = line.startswith("python") and "torch.distributed" not in line
    assert (python_arguments(line.split()) is not None) is computes_itself


@pytest.mark.parametrize(
    "line", ["", "python", "python -O train.py", "python nowhere.py", "bash nowhere.sh", "./nowhere.sh", "nowhere x"]
)
def test_what_cannot_run_is_refused(project: Path, line: str) -> None:
    with pytest.raises(NpukitError):
        check_command(line.split(), project)


@pytest.mark.parametrize(
    ("line", "is_own"),
    [
        ("-u train.py --steps 5", True),
        ("-W ignore -u train.py", True),
        ("-m pkg.train", True),
        ("-m npukit.launch.script --auto train.py", True),
        ("-m torch.distributed.run train.py", False),
        ("/usr/bin/accelerate launch train.py", False),
        ("-c train.py", False),
        ("", False),
    ],
)
def test_a_launchers_own_process_is_not_taken_for_one_of_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, line: str, is_own: bool
) -> None:
    monkeypatch.chdir(project)
    assert is_of_project(main_of(line.split()), project) is is_own


def test_shell_scripts(project: Path) -> None:
    (project / "go").write_text("#!/usr/bin/env bash\n")
    (project / "tool").write_text("#!/usr/bin/env python3\n")
    assert is_shell_script(project / "run.sh") and is_shell_script(project / "go")
    assert not any(is_shell_script(project / name) for name in ("tool", "train.py", "pkg", "nowhere"))


def test_run_gives_a_shell_script_its_devices_and_its_arguments(project: Path) -> None:
    (project / "run.sh").write_text('echo "$NPUKIT_DEVICE $1" && exit 3\n')
    command = [sys.executable, "-m", "npukit", "run", "--device", "cpu", "run.sh", "--lr"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "cpu --lr\n")


def test_a_shell_script_is_no_script_for_ranks_or_for_auto(project: Path, npukit: Callable[..., object]) -> None:
    for words in (["launch"], ["run", "--auto", "--device", "sim"]):
        done: subprocess.CompletedProcess[str] = npukit(*words, "run.sh", cwd=project)  # type: ignore[assignment]
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
