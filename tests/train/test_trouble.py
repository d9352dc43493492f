"""What a run says when something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npukit.precision.recompute import first_nonfinite
from npukit.train.options import TrainOptions
from npukit.train.trouble import HangWatch, StopSignals, explain_out_of_memory
from npukit.train.trouble.hang import describe
from npukit.train.trouble.memory import is_out_of_memory


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class RootOfSquare(nn.Module):
    """Finite for 0, but its slope is not."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0).sqrt()


def model_with(odd: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), odd, nn.Linear(4, 1))


def mean(model: nn.Module, batch: Any) -> Tensor:
    out: Tensor = model(batch["x"])
    return out.mean()


def batch() -> dict[str, Tensor]:
    return {"x": torch.randn(6, 4, generator=torch.Generator().manual_seed(1))}


def test_the_first_module_with_nan_and_its_rows() -> None:
    model = model_with(Log())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
    rows = {"x": torch.ones(6, 4)}
    rows["x"][2, 1] = -1
    rows["x"][5, 0] = 0
    text = first_nonfinite(model, mean, rows)
    assert text.startswith("1 (Log) returned 1 NaN and 1 Inf of 24 values for rows 2, 5 of the batch"), text
    assert "its input was finite, at most 1 in float32" in text


def test_nan_in_the_batch_the_weights_and_the_loss() -> None:
    bad = batch()
    bad["x"][3, 0] = float("inf")
    assert first_nonfinite(model_with(nn.ReLU()), mean, bad).startswith(
        "The batch itself contains 1 Inf of 24 values in x for row 3"
    )
    model = model_with(nn.ReLU())
    with torch.no_grad():
        model[2].weight[0, 1] = float("nan")
    assert "from an earlier step: 2.weight" in first_nonfinite(model, mean, batch())
    text = first_nonfinite(model_with(nn.ReLU()), lambda model, rows_: mean(model, rows_) / 0, batch())
    assert text.startswith("The loss itself is")


class DividesBetween(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x) / 0)
        return y


def test_nan_between_modules() -> None:
    text = first_nonfinite(DividesBetween(), mean, batch())
    assert "between modules, right before second (Linear)" in text


def test_nan_in_the_backward() -> None:
    model = model_with(RootOfSquare())
    text = first_nonfinite(model, mean, batch())
    assert "the gradient of the output of 0 (Linear)" in text
    assert "0.weight" in text
    assert all(weight.grad is None for weight in model.parameters())


def test_nan_that_does_not_come_again() -> None:
    assert first_nonfinite(model_with(nn.ReLU()), mean, batch()) is None


NPU_TEXT = (
    "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity; 58.10 GiB already allocated; "
    "58.10 GiB current active; 1.02 GiB free; 59.00 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), True),
        (RuntimeError(NPU_TEXT), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_out_of_memory(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


class FakeNpu:
    """Memory statistics of a device of 8 GiB that was full but for 1 GiB."""

    def __init__(self, peak: float = 7.0) -> None:
        self.peak = peak

    def get_device_properties(self, device: torch.device) -> Any:
        return type("Properties", (), {"total_memory": 8 * 2**30})

    def max_memory_allocated(self, device: torch.device) -> int:
        return int(self.peak * 2**30)


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch, "get_device_module", lambda device: FakeNpu())
    return torch.device("cuda", 1)  # stands for a card


def test_out_of_memory_keeps_the_rows_of_a_step(npu: torch.device) -> None:
    """Fixed 1 GiB, activations at least 7 + 2 - 1 = 8: there is room for 7.2 - 1 = 6.2, so for half a batch."""
    model = nn.Linear(2**13, 2**13, bias=False, device="meta")  # 0.25 GiB of weights, four times that with Adam
    options = TrainOptions(batch_size=12, accumulation=3)
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), options, model, npu, 1, None, step=4))
    assert "CUDA 1 is out of memory at step 4 (7.0 GiB of 8.0 GiB used, 2.0 GiB more requested)" in text
    changes = text.split("\n  - ")[1:]
    assert changes[0].startswith(
        "batch_size: 6 and accumulation: 6 (now 12 and 3: the same 36 rows per step, about 4.0 GiB"
    )
    assert changes[1].startswith("activation_checkpointing: true: about 5.6 GiB less")


def test_out_of_memory_with_less_room_takes_a_smaller_batch(npu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed 6 GiB: there is room for 1.2 of at least 3 GiB, which a half would not fit into."""
    monkeypatch.setattr("npukit.train.trouble.memory._fixed_bytes", lambda options, model: 6 * 2**30)
    options = TrainOptions(batch_size=12, accumulation=1)
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), options, nn.Linear(1, 1), npu, 1))
    assert "batch_size: 4 and accumulation: 3" in text


def test_states_that_do_not_fit_are_not_mended_by_smaller_batches(
    npu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npukit.train.trouble.memory._fixed_bytes", lambda options, model: 8 * 2**30)
    options = TrainOptions(batch_size=12)
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), options, nn.Linear(1, 1), npu, 4))
    assert "batch_size" not in text and "activation_checkpointing" not in text
    assert "parallel: fsdp2 (or zero3), which splits 8.0 GiB" in text and "over 4 devices, 2.0 GiB" in text


def test_a_device_that_others_use(npu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: FakeNpu(peak=1.5))
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), TrainOptions(), nn.Linear(1, 1), npu))
    assert "\n  - stop other processes" in text and "only 1.5 GiB" in text


def test_long_rows_are_named() -> None:
    options = TrainOptions(batch_size=1, activation_checkpointing=True, parallel="zero3", offload=True)
    rows = {"input_ids": torch.zeros(1, 4096, dtype=torch.long)}
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), options, batch=rows, world_size=2))
    assert "4096" in text
    assert not any(word in text for word in ("batch_size", "activation_checkpointing", "parallel:", "offload"))
    packed = {"input_ids": torch.zeros(1, 4 * 512, dtype=torch.long)}  # four rows that follow each other
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), TrainOptions(batch_size=4), batch=packed))
    assert "length 512" in text


@pytest.mark.parametrize("trained", [True, False])
def test_an_adapter_is_not_advised_where_one_is_trained(npu: torch.device, trained: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)).requires_grad_(trained)
    model[1].requires_grad_(True)
    text = str(explain_out_of_memory(RuntimeError(NPU_TEXT), TrainOptions(), model, npu))
    assert ("lora" in text) == trained


def test_a_signal_only_asks_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(announce=False) as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # torchrun hands on what the terminal sent already
        assert stop.requested and stop.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_ends_at_once() -> None:
    code = """
        import os, signal, time
        from npukit.train.trouble.signals import StopSignals
        with StopSignals():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1.1)
            print("still here", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT and "still here" in done.stdout
    assert "SIGINT: stopping after this step" in done.stderr


def a_place_to_hang(until: threading.Event) -> None:
    until.wait()


def test_a_hang_writes_all_stacks_and_tells_who_lags(tmp_path: Path) -> None:
    sentences: list[str] = []
    ended = threading.Event()

    def log(text: str) -> None:
        sentences.append(text)
        ended.set()

    other = threading.Thread(target=ended.wait, name="the other thread")
    other.start()
    options = TrainOptions(output=tmp_path, hang_limit=2)
    (tmp_path / "hang-rank1.txt").write_text(
        json.dumps({"rank": 1, "last_step": 6, "seconds": 1, "at": "x", "waits": True})
    )
    with HangWatch(options, rank=0, world_size=2, log=log) as hang:
        for step in range(1, 8):
            time.sleep(0.1)
            hang.beat(step)
        assert not sentences
        a_place_to_hang(ended)
    other.join()
    text = (tmp_path / "hang-rank0.txt").read_text()
    assert "in a_place_to_hang" in text and "Thread the other thread" in text
    assert json.loads(text.split("\n", 1)[0])["last_step"] == 7
    assert "rank 0: after step 7, at" in sentences[0] and "The others probably wait for rank 1." in sentences[0]
    assert all(path.stat().st_size for path in tmp_path.glob("hang-*"))


def test_a_hang_that_holds_pythons_lock_is_written_too(tmp_path: Path) -> None:
    code = f"""
        import ctypes, time
        from npukit.train.options import TrainOptions
        from npukit.train.trouble.hang import HangWatch
        with HangWatch(TrainOptions(output={str(tmp_path)!r}, hang_limit=0.4), log=lambda text: None):
            time.sleep(0.3)
            ctypes.PyDLL(None).sleep(2)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    assert 'File "<string>", line 7' in (tmp_path / "hang-rank0-locked.txt").read_text()


def test_who_lags(tmp_path: Path) -> None:
    heads = {rank: {"last_step": 9, "seconds": 30, "at": "loader.py:1", "waits": rank != 2} for rank in range(4)}
    assert "wait for rank 2." in describe(heads, 4, tmp_path)
    assert "rank 3: wrote nothing" in describe({rank: heads[rank] for rank in range(3)}, 4, tmp_path)
