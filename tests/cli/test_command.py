from __future__ import annotations

import subprocess
import sys

import pytest

from npukit import __version__


def npukit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npukit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["sim", "--help"]])
def test_help_and_version_import_no_torch(arguments: list[str]) -> None:
    code = f"""
import atexit, sys
from npukit.cli import main
atexit.register(lambda: print("HEAVY:", [m for m in ("torch", "torch_npu", "numpy", "yaml") if m in sys.modules]))
sys.argv = ["npukit", *{arguments}]
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "HEAVY: []" in result.stdout


def test_version() -> None:
    assert npukit("--version").stdout == f"npukit {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--device", "sim", "--card", "910B33", __file__], "did you mean 910B3?"),
        (["run", "--device", "sim", "nowhere.py"], "There is no script nowhere.py"),
        (["run", "--crad", "910B3", __file__], "There is no option --crad"),
        (["run", "--device", "cpu", "--card", "910B1", __file__], "add --device sim"),
        (["run", "-m"], "There is no option -m"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = npukit(*arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_bug_keeps_its_traceback() -> None:
    code = """
import sys
from npukit import cli
from npukit.launch import devices
devices.choose = lambda *wanted: 1 / 0
sys.argv = ["npukit", "run", "-m", "module"]
cli.main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "ZeroDivisionError" in result.stderr
