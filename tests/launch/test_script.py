"""The process that a script becomes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


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
