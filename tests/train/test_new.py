"""npukit new, and the configuration of the project that it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.train import TrainOptions
from npukit.train.new import make_project
from npukit.train.read import read_options


def test_a_new_project_is_whole(tmp_path: Path) -> None:
    make_project(tmp_path / "demo")
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"README.md", "config.yaml", "train.py"}
    assert (tmp_path / "demo" / "README.md").read_text().startswith("# demo\n")
    assert read_options(tmp_path / "demo" / "config.yaml").epochs == 10
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_an_empty_folder_that_one_stands_in_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path / "demo")
    make_project(Path())
    assert Path("README.md").read_text().startswith("# demo\n") and Path("train.py").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_a_place_that_cannot_be_written_is_said() -> None:
    with pytest.raises(NpukitError, match="Cannot write /proc/demo"):
        make_project(Path("/proc/demo"))


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "train.py").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("demo", "file", "nowhere/demo"):
        with pytest.raises(NpukitError, match="Cannot write"):
            make_project(tmp_path / name)
    assert (tmp_path / "demo" / "train.py").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "file"]


def test_the_command_is_quick_and_needs_no_torch(tmp_path: Path) -> None:
    code = """if True:
        import sys
        sys.modules["torch"] = None
        sys.argv = ["npukit", "new", "demo"]
        from npukit.cli import main
        main()
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "npukit run train.py" in done.stdout, done.stderr
    assert (tmp_path / "demo" / "train.py").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learning_rte: 0.1", "config.yaml: there is no option learning_rte: did you mean learning_rate?"),
        ("batch_size: 0", "batch_size is 0: input should be greater than 0."),
        ("epochs: [", "is not YAML"),
        ("- epochs", "`name: value`"),
    ],
)
def test_mistakes_in_a_configuration(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(NpukitError) as error:
        read_options(tmp_path / "config.yaml")
    assert sentence in str(error.value)


def test_an_empty_configuration_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("# nothing\n")
    assert read_options(tmp_path / "config.yaml").batch_size == 1


def test_wrong_options_in_python_are_told_as_in_a_file() -> None:
    with pytest.raises(NpukitError) as raised:
        TrainOptions(epoch=1, batch_size=0)  # type: ignore[call-arg]
    assert "epochs" in str(raised.value) and "batch_size" in str(raised.value)
