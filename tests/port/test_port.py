"""npukit port: on a branch of its own, one commit a rule; it can be stopped, and the user's work is never touched."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.launch.devices import choose
from npukit.port import port as module
from npukit.port.commits import Commit, commit_by_rule
from npukit.port.imports import ImportCheck
from npukit.port.port import port
from npukit.port.report import write_reports

SCRIPT = """\
def train(model, batch):
    import torch
    model.cuda()
    torch.cuda.synchronize()
    return model(batch.cuda())
"""


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with uncommitted work. test_imports.py imports; the tests run on the CPU, which starts sooner."""
    monkeypatch.setattr(module, "check_imports", lambda migration, _: ImportCheck(migration, ()))
    monkeypatch.setattr(module, "choose", lambda _: choose("cpu"))
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(SCRIPT)
    (root / "test_train.py").write_text("from train import train\n\ndef test_it():\n    assert callable(train)\n")
    git(root, "init", "-q", "-b", "work")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (root / "train.py").write_text(SCRIPT + "# not committed\n")
    (root / "notes.txt").write_text("mine")
    return root


def test_a_port_from_clone_to_report(project: Path) -> None:
    before = git(project, "rev-parse", "HEAD"), git(project, "status", "--porcelain")
    result = port(project)
    assert {step.name: step.outcome for step in result.steps} == {
        "doctor": "skipped",
        "analyze": "passed",
        "migrate": "passed",
        "tests": "passed",
        "verify": "skipped",
    }
    assert (git(project, "rev-parse", "HEAD"), git(project, "status", "--porcelain")) == before
    assert git(project, "branch", "--show-current") == "work" and result.uncommitted
    messages = git(project, "log", "--format=%B", "work..npukit/port")
    assert messages.count("NPK101") == messages.count("NPK110") == 1, "one commit a rule"
    migrated = git(project, "show", "npukit/port:train.py")
    assert "cuda()" not in migrated and "not committed" not in migrated
    for file in write_reports(result):
        assert str(result.migrated) not in file.read_text()
    data = json.loads((result.folder / "report.json").read_text())
    assert (
        data["good"]
        and data["proven"]
        and data["branch"] == "npukit/port"
        and [step["name"] for step in data["steps"]][-1] == "verify"
    )


def test_tests_that_pass_nowhere_prove_nothing(project: Path) -> None:
    result = port(project, tests="python -m pytest -q --no-such-option")
    assert {step.name: step.outcome for step in result.steps}["tests"] == "skipped"
    assert result.good and not result.proven


def test_a_port_that_is_stopped_goes_on(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = commit_by_rule

    def stopped(migration: Any) -> Iterator[Commit]:
        yield next(committed(migration))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "commit_by_rule", stopped)
        port(project, tests="")
    port(project, tests="")
    assert len(git(project, "log", "--oneline", "work..npukit/port").splitlines()) == 2
    monkeypatch.setattr(module, "commit_by_rule", stopped)
    again = port(project, tests="")
    assert again.good, "what was done is not done twice"

    (again.migrated / "train.py").write_text("1 / 0\n")
    git(again.migrated, "commit", "-qam", "by hand")
    broken = port(project, tests="python -c 'import train'")
    assert not broken.good, "a commit on the branch is tested again"


def test_a_command_that_cannot_run_is_refused_before_any_work(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "analyze", None)
    for command in (["no-such-launcher", "train.py"], ["bash", "notes.txt"], ["python", "nowhere.py"]):
        with pytest.raises(NpukitError):
            port(project, command, tests="")


def test_a_launcher_gets_the_devices_that_are_asked_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def verify(before: Path, after: Path, command: list[str], devices: int | None, **_: Any) -> None:
        asked.append((command, devices))
        raise NpukitError("it is enough to be asked")

    monkeypatch.setattr(module, "verify", verify)
    port(project, ["torchrun", "train.py"], tests="", devices=2)
    port(project, ["torchrun", "train.py"], tests="", devices=4)
    assert asked == [(["torchrun", "train.py"], 2), (["torchrun", "train.py"], 4)]


def test_what_cannot_be_ported(project: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(NpukitError, match="git init"):
        port(tmp_path / "plain")
    with pytest.raises(NpukitError, match="no folder"):
        port(tmp_path / "nowhere")
    git(project, "branch", "npukit/port")
    with pytest.raises(NpukitError, match="--branch"):
        port(project)
