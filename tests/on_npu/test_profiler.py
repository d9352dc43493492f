"""torch_npu's own profiler on a simulated NPU: what ran is in its files, and the times are marked as simulated."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_npu
from tests.on_npu.conftest import not_with, since
from torch import nn

from npukit.performance.advise.advise import judge
from npukit.performance.read import read_profiles
from npukit.performance.read.model import Trace, Work

npu = torch_npu.profiler
STEPS = 2


def record(folder: Path, level: object, work: Callable[[], object]) -> Path:
    with npu.profile(
        activities=[npu.ProfilerActivity.CPU, npu.ProfilerActivity.NPU],
        schedule=npu.schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=npu.tensorboard_trace_handler(str(folder)),
        record_shapes=True,
        experimental_config=npu._ExperimentalConfig(profiler_level=level),
    ) as profiler:
        for _ in range(STEPS + 1):
            work()
            profiler.step()
    return next(folder.glob("*_ascend_pt"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to("npu")
    batch = torch.randn(32, 64)

    def step() -> float:
        loss = model(batch.to("npu")).square().mean()
        loss.backward()
        return float(loss.detach())

    return record(tmp_path_factory.mktemp("profile"), npu.ProfilerLevel.Level1, step)


def test_the_kernels_that_ran_are_listed_once_with_their_shapes(recorded: Path) -> None:
    with (recorded / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").open() as file:
        rows = list(csv.DictReader(file))
    per_step = Counter(row["Type"] for row in rows)
    assert per_step["addmm"] == 2 * STEPS and per_step["relu"] == STEPS
    assert not {"view", "t", "transpose", "empty"} & set(per_step)
    first = next(row for row in rows if row["Type"] == "addmm")
    assert first["Input Shapes"] == '"128;32,64;64,128"' and first["Output Shapes"] == '"32,128"'
    assert first["Accelerator Core"] == "AI_CORE"
    assert {row["OP State"] for row in rows} == {"simulated"}


def test_advise_reads_them_and_says_that_they_are_simulated(recorded: Path) -> None:
    traces = read_profiles([recorded])
    advised = judge(traces)
    assert advised.simulated and advised.ranks[0].steps == STEPS
    assert advised.ranks[0].split.compute > 0
    products = [kernel for kernel in traces[0].kernels if kernel.op == "aten::addmm"]
    assert len(products) == 2 * STEPS and all(kernel.launched is not None for kernel in products)
    assert any(kernel.work is Work.copy for kernel in traces[0].kernels), "the batch and the loss"
    assert any(call.name.startswith("aclrtSynchronizeStream") for call in traces[0].runtime), "item() waits"


@not_with("2.4", "a profile is not analysed into a database")
def test_the_database_tells_the_same(recorded: Path) -> None:
    text = read_profiles([recorded])[0]
    npu.profiler.analyse(str(recorded), export_type="db")
    database = next((recorded / "ASCEND_PROFILER_OUTPUT").glob("ascend_pytorch_profiler*.db"))
    read = read_profiles([database])[0]

    def kernels(trace: Trace) -> Counter[str]:
        return Counter(kernel.type for kernel in trace.kernels if kernel.work is Work.compute)

    assert read.simulated and len(read.steps) == STEPS
    assert kernels(read) == kernels(text)


def test_nothing_is_recorded_by_children(tmp_path: Path) -> None:
    def fork_and_compute() -> None:
        torch.ones(3, device="npu") + 1
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)

    folder = record(tmp_path, npu.ProfilerLevel.Level0, fork_and_compute)
    with (folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").open() as file:
        assert Counter(row["Type"] for row in csv.DictReader(file))["add"] == STEPS


@since("2.13", "torch's profiler records none")
def test_torchs_own_profiler_has_the_kernels_and_the_operators_that_launched_them() -> None:
    x = torch.ones(8, 8, device="npu")
    with torch.profiler.profile() as profiler:
        torch.mm(x, x).relu()
    kernels = [event for event in profiler.events() if event.device_type.name != "CPU"]
    assert [event.name for event in kernels if "::" in event.name] == ["aten::mm", "aten::relu"]
    assert all(event.time_range.elapsed_us() > 0 for event in kernels)
