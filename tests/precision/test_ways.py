"""Two right ways to one result are the same, and what lies beside them is still judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.precision.test_rows import X, compared, off, op
from torch import Tensor, nn

from npukit.precision import capture
from npukit.precision.comparing import compare
from npukit.precision.dump import Call
from npukit.precision.result import Comparison

Clip = Callable[[Sequence[Tensor]], None]


class Experts(nn.Module):
    """Two halves of the rows, each with its own matrix: one after the other, or sorted into one product."""

    def __init__(self, sorted_first: bool, fault: float) -> None:
        super().__init__()
        self.weight, self.act = nn.Parameter(torch.randn(2, 8, 8)), nn.SiLU()
        self.sorted_first, self.fault = sorted_first, fault

    def forward(self, x: Tensor) -> Tensor:
        if self.sorted_first:
            both = torch.bmm(torch.stack([x[1::2], x[::2]]), self.weight.flip(0))
            return self.act(both).flip(0).transpose(0, 1).reshape(x.shape) * self.fault
        hidden = torch.stack([x[::2] @ self.weight[0], x[1::2] @ self.weight[1]], 1)
        return self.act(hidden).flatten(0, 1)


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize(("fault", "same"), [(1.0, True), (1.01, False)])
def test_modules_inside_of_what_each_run_computes_in_its_own_way(
    tmp_path: Path, fault: float, same: bool, level: Literal["modules", "ops"]
) -> None:
    def run(name: str, sorted_first: bool) -> Path:
        torch.manual_seed(0)
        module, x = nn.Sequential(nn.Identity(), Experts(sorted_first, fault)), torch.randn(6, 8, requires_grad=True)
        with capture(tmp_path / name, level=level):
            module(x * 1.5).square().sum().backward()
        return tmp_path / name

    assert compare(run("a", False), run("b", True)).same is same


def halved(weights: Sequence[Tensor]) -> None:
    for weight in weights:
        weight.grad.div_(2)


def clipped(weights: Sequence[Tensor]) -> None:
    nn.utils.clip_grad_norm_(weights, 0.1)


def train(
    folder: Path, before: Sequence[Clip] = (), momentum: torch.dtype = torch.float32, reverse: bool = False,
    rate: float = 0.1,
) -> Path:  # fmt: skip
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    weights = list(model.parameters())
    groups = [{"params": weights[:2][:: -1 if reverse else 1]}, {"params": weights[2:], "lr": rate}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=False)
    for weight in weights:
        optimizer.state[weight]["momentum_buffer"] = torch.full_like(weight, 1e-3, dtype=momentum)
    with capture(folder, level="ops", steps=[0]):
        model(torch.randn(3, 4)).square().mean().backward()
        for step in before:
            step(weights)
        optimizer.step()
    return folder


def first_of(left: Path, right: Path) -> str:
    difference = compare(left, right).first
    assert difference is not None
    return f"{difference.kind} {difference.what}"


def test_what_comes_after_the_model_is_no_part_of_it(tmp_path: Path) -> None:
    dumps = train(tmp_path / "a", [halved, clipped]), train(tmp_path / "b", [clipped, halved])
    assert re.match(r"missing input .* of (_foreach_norm|div_) differs", first_of(*dumps))


def test_what_an_optimizer_remembers_in_another_type(tmp_path: Path) -> None:
    dumps = train(tmp_path / "a"), train(tmp_path / "b", momentum=torch.bfloat16)
    assert first_of(*dumps).startswith("dtype mul_ (optimizer)")


def test_parameters_in_another_order_are_compared_by_name(tmp_path: Path) -> None:
    plain = train(tmp_path / "a")
    comparison = compare(plain, train(tmp_path / "b", reverse=True))
    assert comparison.same and comparison.coverage == 1.0
    assert first_of(plain, train(tmp_path / "c", reverse=True, rate=0.2)).startswith("argument")


def test_values_that_are_broadcast_in_one_run(tmp_path: Path) -> None:
    def run(name: str, shape: Sequence[int]) -> Path:
        torch.manual_seed(0)
        values, targets = torch.randn(6), torch.randn(6)
        with capture(tmp_path / name, level="ops"):
            ((values * 2).view(shape) - targets).square().mean()
        return tmp_path / name

    assert first_of(run("a", (6,)), run("b", (6, 1))).startswith("shape sub")


def test_a_whole_number_is_no_other_type_of_a_fraction() -> None:
    first = compared(op("pack", X), op("pack", X.long())).first
    assert first is not None and first.kind == "shape"


def test_a_module_is_judged_no_stricter_than_what_it_calls() -> None:
    def calls(size: float, of_module: float = 0.0) -> list[Call]:
        inner = op("mm", off(size), off(size))
        result = replace(op("mm", off(size + of_module)).outputs["0"], maker=inner.name)
        return [inner, Call("Module.layer.Net.forward.0", "module", "Net", "layer", "forward", 0, {}, {"0": result})]

    assert compared(calls(0.0), calls(5e-6)).same
    assert not compared(calls(0.0), calls(5e-6, 1e-5)).same


class Block(nn.Module):
    """A norm before what is added, or after."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.norm, self.linear, self.before = nn.LayerNorm(8), nn.Linear(8, 8), before

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        return x + self.linear(self.norm(x)) if self.before else self.norm(x + self.linear(x))


def test_a_module_that_reads_the_result_of_another_call(tmp_path: Path) -> None:
    def run(name: str, before: bool) -> Path:
        torch.manual_seed(0)
        block, x = Block(before), torch.randn(3, 8)
        with capture(tmp_path / name, level="ops"):
            block(x)
        return tmp_path / name

    assert first_of(run("a", True), run("b", False)).startswith("reads")


def norm_results(place: str, left: Tensor, right: Tensor, name: str) -> Comparison:
    """A call of a norm on centred values, of which one result differs."""
    centred = X - X.mean()
    calls = [op(name, centred.flip(0), centred) for _ in range(2)]
    for call, result in zip(calls, (left, right), strict=True):
        call.outputs.update({place: op(name, result).outputs["0"]})  # type: ignore[attr-defined]
    return compared(*calls)


@pytest.mark.parametrize(
    ("name", "place"), [("native_batch_norm", "3"), ("native_batch_norm_backward", "2")], ids=["mean", "sum"]
)
def test_sums_of_what_cancels_out(name: str, place: str) -> None:
    tiny, zero = torch.full((64,), 1e-9), torch.zeros(64)
    assert norm_results(place, zero, tiny, name).same
    assert not norm_results(place, zero, tiny + 1e-2, name).same
    assert not norm_results("0", X, off(1e-2), name).same


@pytest.mark.parametrize(("labels", "same"), [([3, 2, 1, 0], True), ([2, 3, 1, 0], False)])
def test_rows_of_a_batch_in_another_order(tmp_path: Path, labels: list[int], same: bool) -> None:
    def run(name: str, rows: Tensor, wanted: Tensor) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with capture(tmp_path / name, level="ops"):
            nn.functional.cross_entropy(model(rows), wanted).backward()
            optimizer.step()
        return tmp_path / name

    rows = torch.arange(32.0).sin().view(4, 8)
    comparison = compare(run("a", rows, torch.arange(4)), run("b", rows.flip(0), torch.tensor(labels)))
    assert comparison.same is same and bool(comparison.notes) is same


@pytest.mark.parametrize(("fault", "same"), [(0.0, True), (0.1, False)])
def test_a_bias_that_is_added_later(tmp_path: Path, fault: float, same: bool) -> None:
    class Gate(nn.Linear):
        def __init__(self, apart: bool) -> None:
            super().__init__(8, 4)
            nn.init.zeros_(self.weight)
            self.apart = apart

        def forward(self, x: Tensor) -> Tensor:
            if self.apart:
                return (x[None] @ self.weight.t()[None])[0] + self.bias + fault
            return super().forward(x)

    def run(name: str, apart: bool) -> Path:
        torch.manual_seed(0)
        gate = nn.Sequential(Gate(apart))
        with capture(tmp_path / name, level="ops"):
            gate(torch.ones(3, 8)).sum().backward()
        return tmp_path / name

    assert compare(run("a", False), run("b", True)).same is same


def test_an_exponential_of_a_large_number_rounds_more() -> None:
    """The loss of CTC is a logarithm, of which the backward pass computes the exponential."""
    loss = torch.tensor([100.0, 99.0])
    large = [op("_ctc_loss_backward", result, X, loss) for result in (X, off(1e-5), off(1e-3))]
    small = [op("_ctc_loss_backward", result, X, loss / 100) for result in (X, off(1e-5))]
    assert compared(large[0], large[1]).same and not compared(large[0], large[2]).same
    assert not compared(*small).same


def test_a_step_of_adam_where_gradients_are_rounding_noise() -> None:
    """The first step of a weight that is zero is full size, in either direction."""
    zero, moment = torch.zeros(64), torch.full((64,), 1e-4)
    noise = torch.where(torch.arange(64) < 4, 1e-8, 0.0)

    def step(sign: float, error: float = 0.0) -> Call:
        first = torch.where(noise > 0, sign * noise, moment)
        second = first.abs() + 1e-8
        result = -1e-3 * first / second + error
        return op("addcdiv_", result, zero, first, second, -1e-3, phase="optimizer", path="")

    assert compared(step(1.0), step(-1.0)).same
    assert not compared(step(1.0), step(1.0, error=1e-4)).same


def test_another_mask_is_named_and_not_what_reads_the_scores() -> None:
    """Norms of masked scores overflow. A mask may also have the values of another tensor by chance."""
    kept = torch.ones(64, 64, dtype=torch.bool).tril()
    window = kept & ~kept.tril(-8)
    before = op("le", kept, X, path="")

    def calls(keep: Tensor) -> list[Call]:
        scores = X.masked_fill(~keep, torch.finfo().min)
        return [before, op("where", scores, keep, X), op("_softmax", scores.softmax(-1), scores)]

    first = compared(calls(window), calls(kept)).first
    assert first is not None and (first.kind, first.row.left) == ("source", "Aten.where.0.forward")
    added = [torch.zeros(64, 64).masked_fill(~keep, torch.finfo().min) for keep in (window, kept)]
    first = compared(*(op("add", X + mask, X, mask) for mask in added)).first
    assert first is not None and first.kind == "source"
