"""On a simulated NPU nothing is heard of torch and torch_npu but what concerns the user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch

half = torch.ones(8, 8, dtype=torch.bfloat16)
half.npu() @ half.npu()
half @ half
torch.nn.Linear(8, 8).npu().to(torch.float64)
"""


def test_one_line_about_a_type_that_npus_do_not_have(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", str(script)]
    heard = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stderr.splitlines()
    assert len(heard) == 1 and "double" in heard[0]
