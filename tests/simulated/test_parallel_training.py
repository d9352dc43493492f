"""Several ranks over simulated HCCL end with the weights of one process that saw the whole batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RANKS = Path(__file__).with_name("parallel_training.py")


def test_ddp_fsdp2_hsdp_and_accelerate_equal_one_process() -> None:
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--devices", "4", str(RANKS)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["DDP", "FSDP2", "HSDP", "accelerate"]
