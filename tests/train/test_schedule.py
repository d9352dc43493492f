"""Learning rates against their closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from npukit.train.options import TrainOptions
from npukit.train.schedule import Schedule, shape

TOTAL = 100
STEPS = (0, 1, 5, 9, 10, 11, 37, 55, 89, 90, 95, 99)


def factors(**options: Any) -> dict[int, float]:
    at = shape(TrainOptions(learning_rate=1.0, **options), TOTAL)
    return {step: at(step) for step in STEPS}


def test_cosine_linear_and_constant_after_warmup() -> None:
    cosine, linear = factors(schedule="cosine", warmup=10), factors(schedule="linear", warmup=10)
    constant = factors(schedule="constant", warmup=0.1)
    for step in STEPS:
        share = (step - 10) / 90
        rising = step / 10 if step < 10 else None
        assert cosine[step] == pytest.approx(rising if rising is not None else (1 + math.cos(math.pi * share)) / 2)
        assert linear[step] == pytest.approx(rising if rising is not None else 1 - share)
        assert constant[step] == (rising if rising is not None else 1.0)


def test_the_lowest_rate_is_kept() -> None:
    assert shape(TrainOptions(learning_rate=1.0, min_learning_rate=0.25), TOTAL)(TOTAL) == pytest.approx(0.25)
    assert factors(schedule="linear", min_learning_rate=0.5)[37] == pytest.approx(0.5 + 0.5 * 0.63)


def test_inverse_square_root() -> None:
    rates = factors(schedule="inverse_sqrt", warmup=10)
    assert {step: rates[step] for step in STEPS if step >= 10} == pytest.approx(
        {step: math.sqrt(10 / step) for step in STEPS if step >= 10}
    )


def test_wsd_rises_stays_and_falls() -> None:
    rates = factors(schedule="wsd", warmup=10, decay=0.2)
    assert [rates[step] for step in (5, 10, 37, 55)] == [0.5, 1.0, 1.0, 1.0]
    assert rates[90] == pytest.approx(0.5) and rates[99] == pytest.approx(0.05)


def test_onecycle_is_torchs() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=TOTAL, cycle_momentum=False)
    ours = shape(TrainOptions(learning_rate=1.0, schedule="onecycle"), TOTAL)
    for step in range(TOTAL):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6), step
        optimizer.step()
        if step < TOTAL - 1:
            theirs.step()


def test_groups_keep_their_own_highest_rate_also_after_loading() -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))], "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    schedule = Schedule(optimizer, TrainOptions(schedule="linear", learning_rate=1.0), TOTAL)
    optimizer.load_state_dict(optimizer.state_dict())
    assert schedule.set(50) == 0.5
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]


@pytest.mark.parametrize(("ours", "theirs"), [("cosine_restarts", {"num_cycles": 3}), ("polynomial", {"power": 2.0})])
def test_schedules_of_transformers(ours: str, theirs: dict[str, Any]) -> None:
    from transformers import optimization

    name = {"cosine_restarts": "cosine_with_hard_restarts", "polynomial": "polynomial_decay"}[ours]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = getattr(optimization, f"get_{name}_schedule_with_warmup")(optimizer, 10, TOTAL, **theirs)
    lowest = {"min_learning_rate": 1e-7} if ours == "polynomial" else {}
    rates = factors(schedule=ours, warmup=10, cycles=3, power=2.0, **lowest)
    assert rates == pytest.approx({step: reference.lr_lambdas[0](step) for step in STEPS}, abs=1e-6)


def test_shares_become_steps() -> None:
    options = TrainOptions(log_every=0.1, eval_every="epoch", save_every=0.25).in_steps(30)
    assert (options.log_every, options.eval_every, options.save_every) == (3, "epoch", 8)
