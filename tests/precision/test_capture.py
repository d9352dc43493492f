"""What a dump holds, and that recording it changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module

from npukit.precision import capture
from npukit.precision.reading.find import find_dumps, read
from npukit.precision.recording.batch import statistics_of

Run = Callable[..., Path]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_a_hash_depends_on_values_and_their_order_not_on_layout(dtype: torch.dtype) -> None:
    values = torch.randn(31, 17).mul(3).trunc().to(dtype)
    assert statistics_of(values).hash == statistics_of(values.t().contiguous().t()).hash
    assert statistics_of(values).hash != statistics_of(values.t()).hash
    other = values.clone()
    other[30, 16] = not bool(other[30, 16]) if dtype is torch.bool else other[30, 16] + 1
    assert statistics_of(values).hash != statistics_of(other).hash


def test_sketches_tell_how_far_apart_tensors_are() -> None:
    values = torch.randn(100, 333)
    for size in (1e-6, 1e-3, 1.0):
        noise = torch.randn_like(values) * size
        one, other = statistics_of(values).sketch, statistics_of(values + noise).sketch
        estimate = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
        assert 0.4 < estimate / float(noise.norm()) < 2


def test_figures_of_odd_tensors() -> None:
    statistics = statistics_of(torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]))
    assert (statistics.nan, statistics.inf) == (1, 2)
    assert statistics_of(torch.tensor(2**62 + 1)).maximum == 2**62 + 1
    assert statistics_of(torch.arange(8)[3:4].as_strided((1,), (4,), 3)).hash == statistics_of(torch.tensor([3])).hash
    assert statistics_of(torch.tensor(1 + 1j)).norm == pytest.approx(2**0.5)


def test_the_layout_is_that_of_msprobe(record: Run) -> None:
    folder = record("dump", tensors=True) / "step0" / "rank0"
    text = (folder / "dump.json").read_text()
    assert not re.search(r'"[+=%@-]', text), "msprobe refuses what looks like a formula"
    dump = json.loads(text)
    row = dump["data"]["Module.2.up.Linear.forward.0"]
    assert row["output"][0].keys() >= {
        "type",
        "dtype",
        "shape",
        "Max",
        "Min",
        "Mean",
        "Norm",
        "requires_grad",
        "data_name",
    }
    assert {"Module.2.up.Linear.backward.0", "Module.2.up.Linear.parameters_grad.0"} <= dump["data"].keys()
    saved = torch.load(folder / "dump_tensor_data" / row["output"][0]["data_name"], weights_only=True)
    assert float(saved.norm()) == pytest.approx(row["output"][0]["Norm"], rel=1e-6)
    assert json.loads((folder / "construct.json").read_text())["Aten.addmm.0.forward"] == "Module.1.up.Linear.forward.0"


def test_backward_and_optimizer_kernels_know_their_module(record: Run) -> None:
    calls = read(find_dumps(record("dump"))[1, 0]).calls
    backward = {(call.op, call.path) for call in calls if call.phase == "backward" and call.kind == "op"}
    assert ("native_layer_norm_backward", "2.norm") in backward
    assert any(call.phase == "optimizer" and call.kind == "op" for call in calls)
    assert len(find_dumps(record("dump2"))) == 2


@pytest.mark.parametrize("level", ["modules", "ops"])
def test_recording_changes_no_bit(tmp_path: Path, level: str) -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(4, 8)).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    plain = train()
    with capture(tmp_path / "dump", level=level):
        recorded = train()
    assert torch.equal(plain, recorded)


def test_steps_ranks_and_modules_can_be_chosen(record: Run) -> None:
    assert list(find_dumps(record("second", steps=[1]))) == [(1, 0)]
    assert not list(record("none", ranks=[3]).glob("step*"))
    calls = read(find_dumps(record("only", only="2.up", tensors=True))[0, 0]).calls
    assert {call.path for call in calls if call.kind == "op"} == {"2.up"}
    assert not torch._C._len_torch_dispatch_stack() and not module._global_forward_hooks, "nothing is watched any more"
    assert not module._global_forward_hooks_with_kwargs


def test_memory_that_is_used_again_is_looked_at_again(tmp_path: Path) -> None:
    with capture(tmp_path / "dump", level="ops"):
        x = torch.ones(4)
        for _ in range(3):
            x.data.mul_(2)
            x + 0
    calls = [call for call in read(find_dumps(tmp_path / "dump")[0, 0]).calls if call.op == "add"]
    assert [call.inputs["0"].maximum for call in calls] == [2, 4, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("value", [1.0, -0.3])
def test_the_largest_finite_numbers_leave_a_dump_that_can_be_read(
    tmp_path: Path, dtype: torch.dtype, value: float
) -> None:
    largest = torch.full((8,), value, dtype=dtype) * torch.finfo(dtype).max  # finite, unlike their sum
    with capture(tmp_path, level="ops"):
        largest * 1
    assert [call.op for call in read(find_dumps(tmp_path)[0, 0]).calls] == ["mul"]


@pytest.mark.parametrize("tensors", [False, True])
def test_lazy_conjugates_are_recorded_as_they_are_read(tmp_path: Path, tensors: bool) -> None:
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    with capture(tmp_path, level="ops", tensors=tensors):
        z.conj() @ z.mH  # products take conjugates as they are
    (call,) = read(find_dumps(tmp_path)[0, 0]).calls
    assert (call.inputs["0"].minimum, call.inputs["0"].maximum) == (-2, 4)
