"""Trouble of a training run on simulated NPUs: no memory, faulty gradients; and a new project that trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import Npukit
from tests.forks import Forks

NPUKIT = [sys.executable, "-m", "npukit"]

WIDE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from npukit.train import Trainer, TrainOptions

options = TrainOptions(batch_size=1024, accumulation=2, max_steps=3, precision="fp32", plot=False, workers=0)
model = nn.Sequential(nn.Linear(8, 4096), nn.ReLU(), nn.Linear(4096, 1))
data = TensorDataset(torch.randn(8192, 8))
Trainer(model, options, data, loss=lambda model, batch: model(batch[0]).square().mean()).train()
"""

# In steps 3 and 30 of one rank one bit of the largest element of a gradient is flipped: its exponent grows.
FLIPPED = """
import os
import torch
from torch import nn
from torch.utils.data import TensorDataset
from npukit.train import Trainer, TrainOptions

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
steps = 0

def flip(gradient):
    global steps
    steps += 1
    if steps not in (3, 30) or os.environ.get("RANK", "0") != os.environ["FAULTY"]:
        return gradient
    flipped = gradient.float().cpu()
    bits = flipped.view(torch.int32).flatten()
    place = flipped.abs().argmax()
    bits[place] |= 1 << next(bit for bit in range(25, 31) if not int(bits[place]) >> bit & 1)
    return flipped.to(gradient.device, gradient.dtype)

model[2].weight.register_hook(flip)
options = TrainOptions(
    batch_size=16, max_steps=40, log_every=10, save_every=None, plot=False, workers=0,
    feature_detection={"enable": "NPU_ASD_CONFIG" not in os.environ},
)
data = TensorDataset(torch.randn(1280, 16), torch.randint(4, (1280,)))
loss = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
Trainer(model, options, data, loss=loss).train()
"""


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    return subprocess.run([*NPUKIT, *command], cwd=folder, env=env, capture_output=True, text=True)


def test_out_of_memory_says_what_to_change(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(WIDE)
    done = run(tmp_path, "run", "--device", "sim", "--fault", "oom@4", "wide.py")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("npukit: NPU 0 is out of memory at step 1"), "and torch_npu's own line is left out"
    assert "batch_size: 512 and accumulation: 4 (now 1024 and 2: the same 2048 rows per step" in done.stderr
    assert "activation_checkpointing: true" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_flipped_bit_is_found_on_a_card_without_bf16(tmp_path: Path) -> None:
    """Where torch_npu's own detection does nothing."""
    (tmp_path / "flipped.py").write_text(FLIPPED)
    assert_found(run(tmp_path, "run", "--device", "sim", "--card", "910A", "flipped.py", FAULTY="0"), 0)


def test_a_flipped_bit_of_the_second_rank_is_found(forks: Forks, tmp_path: Path) -> None:
    """Asked for by torch_npu's variable."""
    (tmp_path / "flipped.py").write_text(FLIPPED)
    command = ["npukit", "run", "--device", "sim", "--devices", "2", "flipped.py"]
    assert_found(forks.start(*command, cwd=tmp_path, NPU_ASD_CONFIG="enable:true", FAULTY="1").wait(), 1)


def assert_found(done: subprocess.CompletedProcess[str], faulty: int) -> None:
    lines = [
        line for line in (done.stdout + done.stderr).splitlines() if "Feature detection" in line and "NPU_" not in line
    ]
    assert done.returncode == 0, done.stderr
    anomalies = {line.split("Feature detection, ")[1].split(" of ", 1)[0] for line in lines}
    assert anomalies == {f"step {step}, rank {faulty}: one element" for step in (3, 30)}, lines
    assert all("of the gradient of 2.weight is" in line for line in lines)


def test_a_new_project_trains(forks: Forks, npukit: Npukit, tmp_path: Path) -> None:
    made = npukit("new", "demo", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    forks.run("npukit", "run", "--device", "sim", "train.py", cwd=tmp_path / "demo")
    summary = json.loads((tmp_path / "demo" / "output" / "summary.json").read_text())
    assert summary["device"] == "simulated Ascend910B3"
    assert summary["last_loss"] < 0.3 < 1 < summary["first_loss"]
    before = sorted((tmp_path / "demo").iterdir())
    again = npukit("new", "demo", cwd=tmp_path)
    assert again.returncode == 2 and "Cannot write demo" in again.stderr
    assert sorted((tmp_path / "demo").iterdir()) == before
