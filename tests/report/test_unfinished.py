"""What a killed process left is removed by the next one; what somebody is at work on, or owns, is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.report.unfinished import remove_abandoned, temporary_folder
from npukit.report.writing import whole_file, whole_folder, write_text


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_abandoned.cache_clear()
    return tmp_path


def killed_in(block: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        block()
        os._exit(1)
    os.waitpid(child, 0)


def age(folder: Path) -> None:
    for file in folder.iterdir():
        os.utime(file, (0, 0))


def test_temporary_folders(temporary: Path) -> None:
    def die() -> None:
        with temporary_folder("verify") as folder:
            (folder / "file").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    own = temporary / "npukit-notes"
    own.mkdir()
    killed_in(die)
    with temporary_folder("check"):
        assert len(list(temporary.iterdir())) == 3, "so new that its maker may still be about to lock it"
    age(temporary)
    with temporary_folder("check") as first, temporary_folder("check") as second:
        assert {own, first, second} == set(temporary.iterdir())
        assert first.stat().st_mode & 0o077 == 0
    with pytest.raises(ZeroDivisionError), temporary_folder("check"):
        raise ZeroDivisionError
    assert list(temporary.iterdir()) == [own]


def test_unfinished_files_and_folders(temporary: Path) -> None:
    def die() -> None:
        with whole_file(temporary / "a.txt") as file, whole_folder(temporary / "b"):
            file.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    killed_in(die)
    assert len(list(temporary.iterdir())) == 2
    age(temporary)
    with whole_file(temporary / "c.txt") as beside:
        assert list(temporary.iterdir()) == [beside]
        age(temporary)
        killed_in(lambda: write_text(temporary / "d.txt", "from another process"))
        assert beside.exists(), "it is in use"
    assert sorted(path.name for path in temporary.iterdir()) == ["c.txt", "d.txt"]


ENDLESS = "import torch\nmodel = torch.nn.Linear(2, 2)\nwhile True:\n    model(torch.ones(2)).sum().backward()\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_takes_its_processes_along(tmp_path: Path, number: signal.Signals) -> None:
    for name in ("before", "after", "tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(ENDLESS)
    (tmp_path / "tmp" / "train.py").unlink()
    command = ["verify", "--device", "cpu", "before", "after", "--", "python", "train.py"]
    variables = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen([sys.executable, "-m", "npukit", *command], cwd=tmp_path, env=variables)
    while not (children := _children(process.pid)):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)  # it ties itself to its parent first
    process.send_signal(number)
    process.wait()
    while any(Path(f"/proc/{child}").exists() for child in children):
        time.sleep(0.05)
    assert len(list((tmp_path / "tmp").iterdir())) == (number == signal.SIGKILL)


def _children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()
