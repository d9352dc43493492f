"""Ranks of one machine: who hears them, who is named when one leaves, and how soon they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

RUN = [sys.executable, "-m", "npukit", "run", "--device", "cpu", "--devices", "2"]
LEAVE = """
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    os._exit(0)  # gloo's threads may abort a process that ends in the usual way
for _ in range(3):
    dist.all_reduce(torch.ones(1))
"""
STOP = """
import os, signal, time
from pathlib import Path
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    listening = {row.split()[9]: row.split()[1] for row in table.splitlines() if " 0A " in row}
    files = [file for process in (os.getpid(), os.getppid()) for file in Path(f"/proc/{process}/fd").iterdir()]
    sockets = {os.readlink(file)[8:-1] for file in files if file.is_symlink()}
    Path("addresses").write_text(" ".join(listening[each] for each in sockets & listening.keys()))
dist.barrier()
if dist.get_rank() == 1:
    Path("stopped").touch()
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""


def test_a_rank_that_leaves_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "leave.py").write_text(LEAVE)
    done = subprocess.run([*RUN, "leave.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "npukit: rank 1 exited with code 0" in done.stderr and "Traceback" not in done.stderr


def test_ranks_listen_on_loopback_alone_and_a_stopped_one_ends_with_the_others(tmp_path: Path) -> None:
    (tmp_path / "stop.py").write_text(STOP)
    job = subprocess.Popen([*RUN, "stop.py"], cwd=tmp_path)
    try:
        while not (tmp_path / "stopped").exists() and job.poll() is None:
            time.sleep(0.1)
        addresses = (tmp_path / "addresses").read_text().split()
        assert addresses and all(address.startswith("0100007F:") for address in addresses), "127.0.0.1"
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=25) == 128 + signal.SIGTERM, "torchrun alone waits 30 s before it kills"
    finally:
        job.kill()
        job.wait()
