"""Graphs where a process of its own is needed: one whose memory is gone, and one across ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COLLECTIVES = """
import os, torch, torch_npu, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
x, gathered = torch.zeros(999).npu(), torch.zeros(2, 999).npu()
listed = [torch.zeros(999).npu() for _ in range(2)]  # of an odd size, so torch_npu pads them
dist.all_reduce(x)
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    total = x * 2
    dist.all_reduce(total)
    dist.all_gather_into_tensor(gathered, total + rank)
    dist.all_gather(listed, total + rank)
for step in range(4):
    x.fill_(rank + step)
    graph.replay()
    between = torch.ones(1).npu()
    dist.all_reduce(between)  # takes its turn among the graph's own
    expected = 2 * (2 * step + 1)
    assert total.eq(expected).all() and between.item() == 2
    for parts in (gathered, listed):
        assert parts[0].eq(expected).all() and parts[1].eq(expected + 1).all()
dist.destroy_process_group()
"""


def test_collectives_in_a_graph(tmp_path: Path) -> None:
    script = tmp_path / "collectives.py"
    script.write_text(COLLECTIVES)
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--devices", "2", str(script)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_memory_that_was_freed_after_the_capture_is_noticed(simulated: Callable[..., str]) -> None:
    code = """
    import torch, torch_npu
    x, graph = torch.ones(30 << 20).npu(), torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        y = x + 1
    del x
    torch.npu.empty_cache()
    graph.replay()
    try:
        torch.npu.synchronize()
    except RuntimeError as error:
        assert "507015" in str(error), error
    else:
        raise AssertionError("the graph read memory that is not there")
    """
    assert simulated(code) == ""
