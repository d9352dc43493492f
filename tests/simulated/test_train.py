"""The training engine on simulated NPUs: however the work is shared, the same model comes out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.forks import Forks
from torch import Tensor

RANKS = Path(__file__).with_name("train_parallel.py")
WAYS = ("ddp", "fsdp2", "zero2", "zero3")


def run(*command: object) -> str:
    result = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def weights(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Tensor]]]:
    output = tmp_path_factory.mktemp("train")
    for devices, accumulation, ways in ((1, 4, ["ddp"]), (2, 2, WAYS)):
        folder = output / str(devices)
        rank = [RANKS, folder, accumulation, *ways]
        log = forks.run("npukit", "run", "--device", "sim", "--devices", devices, *rank)
        assert [line for line in log.splitlines() if "trained by" in line] == [f"trained by {way}" for way in ways]
    evaluated = {json.loads(file.read_text())["evaluation"]["eval_loss"] for file in output.glob("*/*/summary.json")}
    assert max(evaluated) - min(evaluated) < 1e-4
    yield {
        "one": load_file(output / "1" / "ddp" / "model.safetensors"),
        **{way: load_file(output / "2" / way / "model.safetensors") for way in WAYS},
    }


@pytest.mark.parametrize(
    ("way", "reference", "bound"), [("ddp", "one", 1e-5), *((way, "ddp", 1e-4) for way in WAYS[1:])]
)
def test_the_same_weights_however_the_work_is_shared(
    weights: dict[str, dict[str, Tensor]], way: str, reference: str, bound: float
) -> None:
    """Two ranks against one with twice the accumulation; sharded models against DDP."""
    assert weights[way].keys() == weights[reference].keys()
    for name, value in weights[reference].items():
        assert (weights[way][name] - value).abs().max() < bound, name


@pytest.mark.parametrize(("device", "ranks", "kills"), [("cpu", 1, 2), ("sim", 2, 1)])
def test_killed_and_resumed_runs_end_bit_identical(device: str, ranks: int, kills: int) -> None:
    output = run("-m", "benchmarks", "resume", "kills", "--kills", kills, "--ranks", ranks, "--device", device)
    assert "bit-identical" in output


def test_a_card_without_bf16_trains_in_fp16_with_scaled_gradients(simulated: Any, tmp_path: Path) -> None:
    code = """
        import sys, torch
        from torch import nn
        from npukit.train import Trainer, TrainOptions
        rows = [(row, row.sum()) for row in torch.randn(16, 8)]
        loss = lambda model, batch: nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1])
        options = TrainOptions(output=sys.argv[1], batch_size=4, epochs=5, plot=False, learning_rate=1e-2)
        trainer = Trainer(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), options, rows, loss=loss)
        assert trainer.parallel.dtype == torch.float16 and trainer.parallel.scaler is not None
        assert type(trainer.parallel.optimizer).__name__ == "NpuFusedAdamW"
        summary = trainer.train()
        assert summary.device.startswith("simulated"), summary.device
        again = Trainer(nn.Linear(8, 1), options.model_copy(update={"find_unused_parameters": True}), rows, loss=loss)
        assert type(again.parallel.optimizer).__name__ == "AdamW"  # torch_npu's would decay what takes no part
        options = options.model_copy(update={"parallel": "fsdp2", "output": options.output / "shared"})
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))  # fp32 statistics among fp16
        assert Trainer(model, options, rows, loss=loss).train().steps == 20
    """
    simulated(code, str(tmp_path), card="910A")
    state = torch.load(tmp_path / "checkpoint-20" / "rank-0.pt", weights_only=True)
    assert state["parallel"]["scaler"]["scale"] > 0
