"""npukit train as a process: what is wrong is said before anything heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOOD = (Path(__file__).parents[2] / "data" / "good.yaml").read_text()


LOOK = """
import atexit, sys
heavy = ("torch", "transformers", "datasets", "pyarrow", "numpy", "peft")
atexit.register(lambda: print("HEAVY:", [name for name in heavy if name in sys.modules]))
from npukit.cli import main
sys.argv = ["npukit", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "x.yaml"], ["2 mistakes", "x.yaml:4: row.jsonl", "x.yaml:7: there is no option"]),
        (["train", "y.yaml"], ["There is no file y.yaml: did you mean x.yaml?"]),
        (["train"], ["Name a YAML file"]),
        (["train", "x.yaml", "--devcie", "sim"], ["There is no option --devcie: did you mean --device?"]),
        (["train", "--explain", "learning_rte"], ["did you mean training.learning_rate?"]),
        (["sft", "--modl", "x", "--dataset", "rows.jsonl"], ["ms-swift has no --modl: did you mean model?"]),
        (
            [
                "train",
                "--device",
                "sim",
                "--card",
                "910A",
                "model.path=models/tiny",
                "data.train=rows.jsonl",
                "training.precision=bf16",
            ],
            ["training.precision: a 910A cannot compute in bf16"],
        ),
    ],
)
def test_the_command_ends_with_code_2_and_imports_nothing_heavy(
    arguments: list[str], expected: list[str], folder: Path
) -> None:
    (folder / "x.yaml").write_text(GOOD.replace("rows", "row").replace("learning_rate", "learning_rte"))
    ended = subprocess.run([sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True)
    assert ended.returncode == 2, ended
    assert all(part in ended.stderr for part in expected), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "HEAVY: []" in ended.stdout


@pytest.mark.parametrize("arguments", [["train", "--help"], ["sft", "--help"], ["train", "--explain"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "HEAVY: []" in ended.stdout
