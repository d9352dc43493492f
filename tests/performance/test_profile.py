"""`npukit profile` around scripts that know nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.launch.devices import Devices
from npukit.performance.advise.advise import judge
from npukit.performance.profile import Settings, profile, steps_of
from npukit.performance.read import read_profiles
from npukit.performance.recording import recorder

SCRIPT = """
import gc, sys, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
junk = [[number] for number in range(200_000)]
for batch in DataLoader(torch.randn(80, 64), batch_size=8):
    model(batch).sum().backward()
    optimizer.step()
    gc.collect()
print(sys.argv[1], flush=True)
"""


@pytest.mark.parametrize("steps", ["4-6", "0-2"])
def test_a_script_is_recorded_and_judged(tmp_path: Path, steps: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["profile", "--steps", steps, "--device", "cpu", "--", "python", "train.py", "--done"]
    ran = subprocess.run([sys.executable, "-m", "npukit", *command], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "--done"
    assert ran.stderr.count("\n") == 1  # where the profile is, and no word of the libraries below
    traces = read_profiles([tmp_path / "profile"])
    updates = [mark for mark in traces[0].marks if mark.name.startswith("Optimizer.step")]
    assert [
        (step.start < mark.start, mark.end <= step.end) for step, mark in zip(traces[0].steps, updates, strict=True)
    ] == [(True, True)] * 3
    advised = judge(traces)
    assert advised.ranks[0].steps in (2, 3)  # a first step that pays for what is done once does not count
    assert advised.advice[0].finding.code == "NPK804"


@pytest.mark.parametrize("steps", ["0-1", "1-2", "5-6"])
def test_a_script_that_ends_before_its_first_step_ends_as_it_does_alone(tmp_path: Path, steps: str) -> None:
    """The profiler, the marks of collections and the tracer have to be off before the interpreter takes itself down."""
    (tmp_path / "train.py").write_text("import torch\nraise SystemExit('This needs a CUDA device.')\n")
    command = ["profile", "--steps", steps, "--device", "cpu", "train.py"]
    ran = subprocess.run([sys.executable, "-m", "npukit", *command], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[0] == "This needs a CUDA device."
    assert len(ran.stderr.splitlines()) == 2  # that, and that nothing was recorded
    assert not list((tmp_path / "profile").rglob("*trace.json*"))


def test_steps() -> None:
    assert steps_of("10-12") == (10, 12) and steps_of("7") == (7, 7)
    assert steps_of("0") == (0, 0)
    for wrong in ("5-3", "x", "1-2-3", ""):
        with pytest.raises(NpukitError):
            steps_of(wrong)


def test_what_cannot_be_recorded_is_refused_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "a.py").touch()
    for command, folder in (("torchrun a.py", "new"), ("python", "new"), ("no.py", "new"), ("a.py", "full")):
        words = [str(tmp_path / word) if word.endswith(".py") else word for word in command.split()]
        with pytest.raises(NpukitError):
            profile(words, Devices("cpu"), Settings(folder=str(tmp_path / folder)))
    assert not (tmp_path / "new").exists()


def test_backward_passes_count_where_no_optimizer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from npukit.performance.recording.recorder import PATIENCE, ProfileRecorder

    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # put back afterwards
    recorder, weight = ProfileRecorder(Settings(first=90, last=91)), torch.ones(2, requires_grad=True)
    recorder._count_backwards()
    for _ in range(PATIENCE + 3):
        weight.sum().backward()
    assert recorder.done == 3


def test_only_errors_of_the_profiler_below_are_heard(capsys: pytest.CaptureFixture[str]) -> None:
    def write(made: str) -> None:
        print("[INFO] profiler.py: Start parsing\n|/-[WARNING] profiler.py: 10 records\n[ERROR] profiler.py: disk full")

    recorder._without_chatter(write)("trace")
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines() == ["[ERROR] profiler.py: disk full"]


def test_a_script_that_fails_shows_its_own_traceback_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def fail():\n    1 / 0\n\nfail()\n")
    command = [sys.executable, "-m", "npukit", "profile", "--device", "cpu", "--", "python", "train.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.count("Traceback")) == (1, 1)
    files = [line.split('"')[1] for line in ran.stderr.splitlines() if line.startswith("  File")]
    assert files == [str(tmp_path / "train.py")] * 2
