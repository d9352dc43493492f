"""Optimizers besides Adam and SGD: Muon beside AdamW, what a checkpoint keeps, packages that are not there."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.train.optimizer import make_optimizer
from npukit.train.options import TrainOptions
from npukit.train.other_optimizers import Joined, make_other
from npukit.train.state import load_optimizer_state, optimizer_state


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 4)

    def forward(self, numbers: Any) -> Any:
        return self.inner(self.embed(numbers)).pow(2).sum()


def stepped(model: Small, optimizer: torch.optim.Optimizer, steps: int) -> None:
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


def test_a_checkpoint_keeps_what_both_have_learnt() -> None:
    torch.manual_seed(0)
    whole, options = Small(), TrainOptions(optimizer="muon", learning_rate=0.01)
    first = make_other(whole, options)
    stepped(whole, first, 3)
    again = Small()
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
