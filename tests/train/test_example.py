"""The example in the documentation is run as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "train.md"


def test_the_example_trains(tmp_path: Path) -> None:
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "train.py").write_text(code)
    result = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "171 of 171 (3.00 epochs)" in result.stdout
    assert (tmp_path / "output" / "model.safetensors").exists() and (tmp_path / "output" / "loss.png").exists()
