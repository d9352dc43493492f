"""The example in the documentation is run as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "train-any-model.md"


def test_the_example_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PAGE.read_text().split("```python\n")[1].split("```")[0])
    monkeypatch.chdir(tmp_path)
    runpy.run_path("train.py", run_name="__main__")
    assert "171 of 171 (3.00 epochs)" in capsys.readouterr().out
    assert (tmp_path / "output" / "model.safetensors").exists() and (tmp_path / "output" / "loss.png").exists()
