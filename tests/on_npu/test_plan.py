"""What `npukit plan` sees of a step: what holds the memory at the peak, and the work that was done."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from npukit.facts.planning import planning
from npukit.performance.plan.observe import Observer, WalkIsOver

WIDTH, ROWS = 512, 1024
WEIGHT = WIDTH * WIDTH * 4


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(steps):
        loss = model(torch.ones(ROWS, WIDTH, device="npu")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_memory_at_the_peak_is_told_apart() -> None:
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)]
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    observer = Observer(steps=2)
    with pytest.raises(WalkIsOver), observer:
        train(nn.Sequential(*layers).npu(), steps=5)
    seen = observer.walked()
    roles = seen.by_role()
    assert seen.steps == 2
    assert roles["weights"] == 4 * WEIGHT
    assert roles["optimizer"] == pytest.approx(8 * WEIGHT, rel=0.01)
    assert seen.peak - before == pytest.approx(sum(roles.values()) - roles["inside operators"], rel=0.1)
    assert any(memory.role == "activations" and memory.module == "*" for memory in seen.held)


def test_the_work_of_a_step_is_counted_once() -> None:
    observer = Observer(steps=2)
    with pytest.raises(WalkIsOver), observer:
        train(nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False)).npu(), steps=3)
    products = sum(item.flops for item in observer.walked().work if item.kind == "matmul")
    assert products == 4 * 2 * (2 * ROWS * WIDTH * WIDTH), "forward and the weight's gradient, at fp32's price"
    assert observer.walked().update, "the optimizer's work is apart"
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


class Recomputed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def test_the_host_pays_less_for_autograds_operators_and_more_for_those_computed_again() -> None:
    def issued(kind: type[nn.Sequential]) -> float:
        observer = Observer(steps=1)
        with pytest.raises(WalkIsOver), observer:
            train(kind(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)).npu(), steps=2)
        return sum(item.calls for item in observer.walked().work if item.kind == "matmul")

    once = 2 + 2 * planning().issued_by_autograd
    assert issued(nn.Sequential) == pytest.approx(once)
    assert issued(Recomputed) == pytest.approx(once + planning().computed_again), (
        "the last layer's result is not needed"
    )


@pytest.mark.parametrize("device", ["npu", "cpu"])
def test_weights_that_a_script_updates_itself(device: str) -> None:
    observer = Observer(steps=2)
    with pytest.raises(WalkIsOver), observer:
        layer = nn.Linear(WIDTH, WIDTH, bias=False).to(device)
        for _ in range(20):
            layer(torch.ones(ROWS, WIDTH, device=device)).square().mean().backward()
            layer.weight.data.add_(layer.weight.grad, alpha=-0.1)
            layer.zero_grad()
    assert observer.saw_device == (device == "npu")
    assert observer.steps == (2 if device == "npu" else 0), "one that trains elsewhere is not followed to its end"
