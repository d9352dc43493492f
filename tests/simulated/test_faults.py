"""Faults on request come out as torch_npu's own errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CAUGHT = """
import torch
try:
    x = torch.ones(1, 4, device="npu")
    for _ in range(9):
        x = torch.mm(x, torch.ones(4, 4, device="npu")) / 4
    torch.npu.synchronize()
    print(x.tolist())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("acl=507015@aten::mm:3", "507015"),
        ("bitflip@aten::mm:3", "["),
        ("lost=0", "507033"),
    ],
)
def test_a_fault_on_one_card(simulated: Any, fault: str, expected: str) -> None:
    output = simulated(CAUGHT, faults=[fault])
    assert expected in output
    assert output != "[[1.0, 1.0, 1.0, 1.0]]"


def test_a_fault_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch; torch.ones(1, device='npu')")
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--fault", "explode@noon", str(script)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "explode@noon" in result.stderr and "Traceback" not in result.stderr


def test_a_fault_that_never_came_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch; torch.ones(1, device='npu')")
    command = [sys.executable, "-m", "npukit", "launch", "--device", "sim", "--fault", "kill@999", str(script)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0 and "kill@999 did not happen" in result.stdout + result.stderr


RANKS = """
import sys, torch, torch.distributed as dist, os
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
x = torch.ones(4, device="npu")
for _ in range(5):
    dist.all_reduce(x)
    x = x / dist.get_world_size()
torch.npu.synchronize()
print("all well", flush=True)
"""


def test_a_fault_of_one_rank_ends_them_all(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--devices", "2"]
    command += ["--fault", "kill@4,rank=1", str(script)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, **output, text=True, start_new_session=True)
    try:
        log, _ = process.communicate()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "all well" not in log
    assert "SIGKILL" in log
