"""What two runs differ in is called what it is, however small its effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from npukit.precision import capture
from npukit.precision.comparing import compare
from npukit.precision.result import Comparison


class RMSNorm(nn.Module):
    def __init__(self, sums_in: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight, self.sums_in = nn.Parameter(torch.ones(16)), sums_in

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(self.sums_in)
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(20, 16), RMSNorm(), nn.Linear(16, 20)
        self.between: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.between(self.norm(self.embed(tokens))))


Change = Callable[[Net], object]


def train(folder: Path, change: Change, norms_decay: float = 0.0, kind: type = torch.optim.AdamW) -> Path:
    torch.manual_seed(0)
    net = Net()
    change(net)
    matrices = [weight for weight in net.parameters() if weight.dim() > 1]
    norms = [weight for weight in net.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": norms, "weight_decay": norms_decay}]
    optimizer = kind(groups, lr=1e-5, foreach=False)
    tokens = torch.randint(0, 20, (4, 6))
    with capture(folder, level="ops", steps=[0]):
        loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
    return folder


@pytest.fixture
def against(tmp_path: Path) -> Callable[..., Comparison]:
    """`against(change)` compares a run with one that was changed; `both` is changed in either."""

    def run(change: Change = id, both: Change = id, **settings: object) -> Comparison:
        right = train(tmp_path / "right", lambda net: (both(net), change(net)), **settings)
        return compare(train(tmp_path / "left", both), right)

    return run


def between(function: Callable[[Tensor], Tensor]) -> Change:
    return lambda net: setattr(net, "between", function)


def test_a_setting_of_some_parameters_is_named_with_them(against: Callable[..., Comparison]) -> None:
    first = against(norms_decay=0.01).first
    assert first is not None and first.kind == "argument"
    assert "weight_decay of norm.weight, head.bias is 0.0 on the left, 0.01 on the right" in first.what


def test_optimizers_of_another_class_are_compared(against: Callable[..., Comparison]) -> None:
    first = against(kind=torch.optim.Adam).first
    assert first is not None and first.kind == "argument" and "decoupled_weight_decay" in first.what


def test_a_sum_in_another_type_is_named_where_it_is_formed(against: Callable[..., Comparison]) -> None:
    first = against(lambda net: setattr(net.norm, "sums_in", torch.bfloat16), both=lambda net: net.bfloat16()).first
    assert first is not None and (first.kind, first.row.title) == ("dtype", "pow in norm")


def test_a_whole_run_in_another_type_is_called_that(against: Callable[..., Comparison]) -> None:
    first = against(lambda net: net.bfloat16()).first
    assert first is not None and first.kind == "dtype" and "whole run" in first.what


def test_random_numbers_that_nothing_uses_are_no_difference(against: Callable[..., Comparison]) -> None:
    def unused(x: Tensor) -> Tensor:
        torch.rand(3, generator=unseeded())
        return x

    assert against(both=between(unused)).same
    first = against(both=between(lambda x: x + torch.rand(3, 1, 1, 16, generator=unseeded())[0])).first
    assert first is not None and first.kind == "random"


def unseeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


def test_a_draw_that_only_one_run_makes_is_named_with_those_after_it(against: Callable[..., Comparison]) -> None:
    def dropout(x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)

    first = against(between(lambda x: (torch.randn(2), dropout(x))[1]), both=between(dropout)).first
    assert first is not None and first.kind == "random" and "only the right run draws" in first.what


def test_what_only_one_run_trains_is_named(against: Callable[..., Comparison]) -> None:
    frozen = against(lambda net: net.norm.requires_grad_(False)).first
    assert frozen is not None and frozen.kind == "gradient" and "parameters.weight of norm" in frozen.what
    cut = against(lambda net: net.embed.register_forward_hook(lambda module, given, output: output.detach())).first
    assert cut is not None and cut.kind == "gradient" and "of embed" in cut.what


class Scaled(nn.Module):
    """Scores of attention, scaled before or after the product."""

    def __init__(self, before: bool, scale: float) -> None:
        super().__init__()
        self.before, self.scale = before, scale

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            half = x * self.scale**0.5
            return torch.bmm(half, half.transpose(1, 2))
        return torch.bmm(x, x.transpose(1, 2)) * self.scale


@pytest.mark.parametrize(("scale", "same"), [(0.3, True), (0.31, False)])
def test_another_way_to_the_same_result_is_no_difference(tmp_path: Path, scale: float, same: bool) -> None:
    def run(name: str, module: Scaled) -> Path:
        torch.manual_seed(0)
        x = torch.randn(2, 6, 8, requires_grad=True)
        with capture(tmp_path / name, level="ops"):
            nn.Sequential(nn.Identity(), module)(x * 1.5).square().sum().backward()
        return tmp_path / name

    assert compare(run("a", Scaled(False, 0.3)), run("b", Scaled(True, scale))).same is same


class Masked(nn.Module):
    """An attention that takes its mask as truth values or as numbers to add."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = x @ x.transpose(-1, -2)
        scores = scores.masked_fill(~mask, -1e9) if mask.dtype is torch.bool else scores + mask
        return scores.softmax(-1) @ x


@pytest.mark.parametrize(("ends", "same"), [(4, True), (3, False)], ids=["same positions", "another position"])
def test_a_mask_of_another_kind_is_judged_by_what_comes_of_it(tmp_path: Path, ends: int, same: bool) -> None:
    def run(name: str, mask: Tensor) -> Path:
        torch.manual_seed(0)
        with capture(tmp_path / name, level="ops"):
            Masked()(torch.randn(2, 6, 8), mask)
        return tmp_path / name

    shown = torch.arange(6) < 4
    numbers = torch.zeros(6).masked_fill(torch.arange(6) >= ends, -1e9)
    assert compare(run("a", shown), run("b", numbers)).same is same


def test_another_layout_is_called_that(tmp_path: Path) -> None:
    def run(name: str, transposed: bool) -> Path:
        torch.manual_seed(0)
        x, linear = torch.randn(2, 5, 8), nn.Linear(8, 8)
        with capture(tmp_path / name, level="ops"):
            linear((x.transpose(0, 1) if transposed else x).relu()).sum()
        return tmp_path / name

    first = compare(run("a", False), run("b", True)).first
    assert first is not None and first.kind == "layout"
