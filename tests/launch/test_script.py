"""The process that a script becomes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_what_a_script_left_open_is_written_even_if_its_module_is_never_freed(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "import sys\nfrom npukit.launch.script import run_command\nrun_command(sys.argv[1:])\n"
    )
    (tmp_path / "inner.py").write_text(
        "import ctypes, sys\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules['__main__']))\n"
        "log = open('log', 'w')\nlog.write('done')\n"
    )
    command = [sys.executable, "-m", "npukit.launch.script", "-m", "outer", "inner.py"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "log").read_text() == "done"


@pytest.mark.parametrize("start", [["run"], ["run", "--devices", "2"]])
def test_what_the_user_can_mend_is_said_once_by_one_process_or_many(start: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from npukit.errors import NpukitError\nraise NpukitError('The file is empty: fill it.')\n")
    command = [sys.executable, "-m", "npukit", *start, "--device", "cpu", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (2, "npukit: The file is empty: fill it.\n")
