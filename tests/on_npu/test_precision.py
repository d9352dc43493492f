"""What a simulated NPU computes is compared with the CPU: same where it is the same, named where it is not."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from npukit.precision import capture
from npukit.precision.comparing import compare
from npukit.precision.recording.batch import statistics_of


def train(folder: Path, device: str, negative_slope: float = 0.01) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(negative_slope), nn.Flatten(), nn.Linear(144, 5)
    )
    model.to(device)
    images = torch.randn(2, 3, 8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capture(folder, level="ops"):
        loss = nn.functional.cross_entropy(model(images), torch.tensor([1, 2]).to(device))
        loss.backward()
        optimizer.step()
    return folder


def test_statistics_are_those_of_the_cpu() -> None:
    for values in (torch.randn(100, 333), torch.randn(7).half(), torch.arange(9), torch.tensor([True, False])):
        here, there = statistics_of(values), statistics_of(values.npu())
        assert here.hash == there.hash and here.minimum == there.minimum
        assert torch.allclose(torch.tensor(here.sketch), torch.tensor(there.sketch), atol=1e-3)


def test_an_npu_and_the_cpu_agree(tmp_path: Path) -> None:
    actual = compare(train(tmp_path / "cpu", "cpu"), train(tmp_path / "npu", "npu"))
    assert actual.same and actual.compared > 20


def test_the_operator_that_does_not_agree_is_named(tmp_path: Path) -> None:
    actual = compare(train(tmp_path / "cpu", "cpu"), train(tmp_path / "npu", "npu", negative_slope=0.02))
    assert actual.first is not None and actual.first.row.title.startswith("leaky_relu in 2")
