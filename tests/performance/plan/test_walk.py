"""Walks: the real job on a simulated card, of which nothing is computed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.performance.plan.job import plan, walk_of_script, walked

SCRIPT = """
import os, sys, torch, torch_npu
import torch.distributed as dist
dist.init_process_group("hccl")
assert (dist.get_rank(), dist.get_world_size()) == (0, 16)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8192, 8192, bias=False).npu())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(1000):
    model(torch.ones(64, 8192, device="npu")).sum().backward()
    optimizer.step()
sys.exit("two steps are enough")
"""


def test_any_script_is_walked_through_as_one_of_many_ranks(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "npukit", "plan", "--devices", "8", "--nnodes", "2", "--json", "--", "python"]
    ended = subprocess.run([*command, "train.py"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)["result"]
    weight = 8192 * 8192 * 4
    roles = {memory["role"]: memory["bytes"] for memory in seen["held"]}
    assert roles["weights"] == weight and seen["peak"] >= 2 * weight and seen["fits"]
    sent = 2 * weight * 15 / 16
    assert seen["time"]["collectives"][0] > sent / 25e9, "over the network"


def test_a_script_that_fails_says_why(folder: Path) -> None:
    (folder / "broken.py").write_text("raise ValueError('no such thing')")
    with pytest.raises(NpukitError, match="no such thing"):
        walk_of_script(["broken.py"], 1, "910B3")


def test_a_configuration_is_walked_through_without_weights_and_data() -> None:
    training = {"parallel": "fsdp2", "batch_size": 2, "accumulation": 4}
    config = Config(model={"path": "models/tiny"}, data={"train": "nowhere", "cutoff": 128}, training=training)
    planned = walked(plan(config, 8, "910B3"), config)
    assert planned.walk and planned.walk.time and planned.fits
    roles = {memory.role for memory in planned.walk.held}
    assert {"weights", "activations", "communication"} <= roles
    assert planned.walk.time.collectives[0] > 0
