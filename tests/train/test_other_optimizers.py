"""Optimizers besides Adam and SGD: what they compute, what a checkpoint keeps, packages that are not there."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.train.joined import Joined
from npukit.train.optimizer import make_optimizer
from npukit.train.options import TrainOptions
from npukit.train.other_optimizers import make_other
from npukit.train.state import load_optimizer_state, optimizer_state


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 4)

    def forward(self, numbers: Any) -> Any:
        return self.inner(self.embed(numbers)).pow(2).sum()


def stepped(model: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.tensor([step % 7, 3])).backward()
        optimizer.step()


def test_muon_takes_the_matrices_and_adamw_the_rest() -> None:
    model = Small()
    joined = make_other(model, TrainOptions(optimizer="muon", learning_rate=0.01, weight_decay=0.1))
    assert isinstance(joined, Joined)
    muon, adamw = joined.parts
    assert [id(param) for group in muon.param_groups for param in group["params"]] == [id(model.inner.weight)]
    assert sum(len(group["params"]) for group in adamw.param_groups) == 2
    joined.param_groups[0]["lr"] = 0.0  # what a schedule does
    assert muon.param_groups[0]["lr"] == 0.0


class Attending(nn.Module):
    """A layer of attention, whose largest score is what it is set to."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.q_proj, self.k_proj, self.o_proj = nn.Linear(6, 6), nn.Linear(6, 4, bias=False), nn.Linear(10, 6)
        self.largest_score = torch.zeros(())

    def forward(self, numbers: Any) -> Any:
        hidden = self.embed(numbers)
        return self.o_proj(torch.cat([self.q_proj(hidden), self.k_proj(hidden)], -1)).pow(2).sum()


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    made = matrix.bfloat16() / (matrix.norm() + 1e-7)
    made = made.T if matrix.shape[0] > matrix.shape[1] else made
    for _ in range(5):
        square = made @ made.T
        made = 3.4445 * made + (-4.7750 * square + 2.0315 * square @ square) @ made
    return (made.T if matrix.shape[0] > matrix.shape[1] else made).float()


def test_muonclip_does_what_that_of_ms_swift_does() -> None:
    torch.manual_seed(0)
    model = Attending()
    expected = {name: value.detach().clone() for name, value in model.named_parameters()}
    momenta = {name: torch.zeros_like(value) for name, value in expected.items()}
    rate, decay, scores = 0.02, 0.1, (50.0, 400.0, 0.0)
    optimizer = make_other(model, TrainOptions(optimizer="muonclip", learning_rate=rate, weight_decay=decay))
    for score in scores:
        for name, value in model.named_parameters():
            value.grad = torch.randn_like(value)
            momenta[name] = update = momenta[name] * 0.95 + value.grad
            if value.dim() == 2 and "embed" not in name:
                update = orthogonal(update) * 0.2 * max(value.shape) ** 0.5
            scale = (100 / score) ** 0.5 if score > 100 and name in ("q_proj.weight", "k_proj.weight") else 1.0
            expected[name] = expected[name] * (1 - rate * decay) * scale - rate * update * scale
        model.largest_score.fill_(score)
        optimizer.step()
        assert model.largest_score == 0
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=rate / 20)  # the iteration is in bf16


def test_muonclip_without_queries_and_keys_is_refused() -> None:
    with pytest.raises(NpukitError, match="use muon"):
        make_other(Small(), TrainOptions(optimizer="muonclip"))
    with pytest.raises(NpukitError, match="optimizer_options do not fit"):
        make_other(Small(), TrainOptions(optimizer="muon", optimizer_options={"tau": 3}))


@pytest.mark.parametrize(("name", "kind"), [("muon", Small), ("muonclip", Attending)])
def test_a_checkpoint_keeps_what_both_have_learnt(name: Any, kind: Any) -> None:
    torch.manual_seed(0)
    whole, options = kind(), TrainOptions(optimizer=name, learning_rate=0.01)
    first = make_other(whole, options)
    stepped(whole, first, 3)
    again = kind()
    again.load_state_dict(whole.state_dict())
    second = make_other(again, options)
    load_optimizer_state(second, optimizer_state(first))
    for model, optimizer in ((whole, first), (again, second)):
        stepped(model, optimizer, 2)
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_adafactor_has_a_fixed_rate() -> None:
    model = Small()
    before = model.inner.weight.clone()
    stepped(model, make_other(model, TrainOptions(optimizer="adafactor", learning_rate=0.01)), 1)
    assert 0 < (model.inner.weight - before).abs().max() < 0.05


@pytest.mark.parametrize(
    ("name", "package"), [("galore", "galore-torch"), ("apollo", "apollo-torch"), ("adam_mini", "adam-mini")]
)
def test_a_missing_package_is_named(name: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(wanted: str) -> None:
        raise ImportError(f"No module named {wanted!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NpukitError, match=f"pip install {package}"):
        make_other(Small(), TrainOptions(optimizer=name))


def test_sharded_parameters_are_refused() -> None:
    with pytest.raises(NpukitError, match="ddp"):
        make_optimizer([], TrainOptions(optimizer="muon"), torch.device("cpu"), sharded=True)
