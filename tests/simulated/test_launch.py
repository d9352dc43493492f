"""Jobs on several nodes, restarts, and failures that are explained once."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

NPUKIT = [sys.executable, "-m", "npukit"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_two_nodes_train_with_ddp_and_a_killed_rank_ends_both_with_its_cause(tmp_path: Path) -> None:
    master, script = f"127.0.0.1:{free_port()}", str(Path(__file__).with_name("train_and_die.py"))
    where = ["launch", "--device", "sim", "--devices", "2", "--nnodes", "2", "--master", master]
    nodes = []
    for rank in "01":
        logs = ["--node-rank", rank, "--log-dir", str(tmp_path / "logs")]
        command = [*NPUKIT, *where, *logs, script, str(tmp_path)]
        nodes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    outputs = [node.communicate()[1] for node in nodes]
    ended = time.time()
    assert [node.returncode for node in nodes] == [1, 1], outputs
    assert ended - float((tmp_path / "killed").read_text()) < 30
    for output in outputs:
        assert "rank 3 on node 1 failed first, killed by SIGKILL" in output
        assert "ran out of memory" in output
        assert "Traceback" not in output
    assert {file.name for file in (tmp_path / "logs").glob("*.log")} == {f"rank{rank}.log" for rank in range(4)}
    for number in range(4):
        weights = [float(word) for word in (tmp_path / f"weights{number}").read_text().split()]
        assert weights == pytest.approx(weights_of_one_process(), abs=1e-5)


def weights_of_one_process() -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(5):
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(batch) - batch.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    return [float(weight) for weight in model.weight.detach().flatten()]


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A script whose rank 1, or only process, runs out of memory; no other rank ends by itself."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "if os.environ.get('RANK', '1') == '1':\n"
        "    raise RuntimeError('NPU out of memory. Tried to allocate 2.00 GiB')\n"
        "time.sleep(120)\n"
    )
    return script


@pytest.mark.parametrize("devices", [1, 2])
def test_run_ends_in_one_traceback_and_its_explanation(failing: Path, devices: int) -> None:
    command = [*NPUKIT, "run", "--device", "cpu", "--devices", str(devices), str(failing)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1
    assert "npukit/launch" not in result.stderr
    assert "What to do" in result.stderr.rpartition("NPU out of memory")[2]
    assert ("rank 1 failed first, with exit code 1" in result.stderr) == (devices > 1)


def test_restarts_pass_through(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "print('try', count := os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "if count == '0':\n"
        "    sys.exit(1) if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    options = ["--device", "cpu", "--devices", "2", "--max-restarts", "1", "--log-dir", str(tmp_path / "logs")]
    result = subprocess.run([*NPUKIT, "launch", *options, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "[rank 0] try 1" in result.stdout
    assert (tmp_path / "logs" / "rank1.log").read_text() == "try 0\n"
    assert (tmp_path / "logs" / "restart1" / "rank1.log").read_text() == "try 1\n"
