"""What is said to a user whose command cannot be verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.launch.devices import Wanted
from npukit.verify import verify

pytestmark = pytest.mark.usefixtures("copies")


@pytest.fixture
def projects(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text("print('hello')\n")
    (tmp_path / "after" / "train.py").unlink()
    return tmp_path / "before", tmp_path / "after"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([], "after `--`"),
        (["bash", "run.sh"], "There is no run.sh in .*before"),
        (["./run.sh"], "no program"),
        (["no-such-launcher", "train.py"], "no program"),
        (["python", "-m"], "-m and a module"),
        (["python"], "-m and a module"),
        (["python", "-O", "train.py"], "own options"),
        (["python", "train.py"], "There is no train.py in .*after"),
    ],
)
def test_one_sentence_that_says_what_to_do(projects: tuple[Path, Path], command: list[str], expected: str) -> None:
    with pytest.raises(NpukitError, match=expected):
        verify(*projects, command)


def test_a_folder_that_is_not_there(projects: tuple[Path, Path]) -> None:
    with pytest.raises(NpukitError, match="There is no folder"):
        verify(projects[0], Path("nowhere"), ["python", "train.py"])


def test_a_script_that_prints_nothing_is_compared_by_what_it_differentiates(projects: tuple[Path, Path]) -> None:
    script = "import torch\nw = torch.ones(3, device='cuda', requires_grad=True)\n(w * 2).sum().backward()\n"
    (projects[0] / "train.py").write_text(script)
    (projects[1] / "train.py").write_text(script.replace("cuda", "cpu"))
    result = verify(*projects, ["python", "train.py"], device=Wanted.cpu)
    (compared,) = result.compared
    assert result.same and (compared.kind, compared.count, compared.first) == ("backward", 1, 6.0)


def test_an_original_that_fails_or_prints_no_loss(
    projects: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, after = projects
    (after / "train.py").touch()
    with pytest.raises(NpukitError, match="printed no changing loss"):
        verify(before, after, ["python", "train.py"])
    (before / "train.py").write_text("raise ValueError('no data')\n")
    with pytest.raises(NpukitError, match=r"(?s)fails on.*no data"):
        verify(before, after, ["python", "train.py"])


@pytest.mark.parametrize("devices", [1, 2])
def test_what_a_failed_run_printed_is_kept_where_it_is_said(
    projects: tuple[Path, Path], devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = projects
    script = "import torch\nprint('loss:', torch.ones(2, requires_grad=True).sum().backward() or 2.0)\n"
    (before / "train.py").write_text(script)
    (after / "train.py").write_text("print('the first line')\n" * 99 + "raise ValueError('no data')\n")
    monkeypatch.chdir(tmp_path)
    result = verify(before, after, ["python", "train.py"], device=Wanted.cpu, devices=devices)
    logs = (tmp_path / result.after.logs / "after").glob("output.log" if devices == 1 else "rank*.log")
    assert any("the first line" in log.read_text() for log in logs)  # not each rank got so far before the first failed
    assert result.before.logs == ""
    assert "npukit-verify-" not in result.after.output  # a temporary folder, which is gone
