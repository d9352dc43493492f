"""Advantages: against hand-made numbers, and what cannot be rewarded."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from npukit.llm.config.reinforcement import GrpoOptions
from npukit.rl.advantages import advantages, has_signal, total_rewards

REWARDS = torch.tensor([[1.0, 0.2], [0.0, 0.1], [0.5, 0.5], [0.0, 0.0], [0.0, 0.4], [1.0, 0.9]])
WEIGHTS = torch.tensor([1.0, 2.0])
TOTALS = [1.4, 0.2, 1.5, 0.0, 0.8, 2.8]


def found(**options: Any) -> list[float]:
    return advantages(REWARDS, WEIGHTS, GrpoOptions(num_generations=3, **options)).tolist()


def expected(divisor: Any, factor: float = 1.0) -> list[float]:
    groups = [TOTALS[:3], TOTALS[3:]]
    return [factor * (reward - statistics.mean(group)) / divisor(group) for group in groups for reward in group]


def test_an_answer_is_compared_with_its_group() -> None:
    assert found(scale_rewards="none") == pytest.approx(expected(lambda _: 1))
    assert found() == pytest.approx(expected(lambda group: statistics.stdev(group) + 1e-4), rel=1e-5)
    assert found(scale_rewards="batch") == pytest.approx(expected(lambda _: statistics.stdev(TOTALS) + 1e-4), rel=1e-5)


def test_an_answer_is_compared_with_the_others() -> None:
    assert found(advantage_estimator="rloo", scale_rewards="none") == pytest.approx(expected(lambda _: 1, 3 / 2))
    others = [1.4 - (0.2 + 1.5) / 2]
    assert found(advantage_estimator="rloo", scale_rewards="none")[:1] == pytest.approx(others)


def test_reinforce_plus_plus_scales_by_the_deviation_of_the_advantages() -> None:
    plain = expected(lambda _: 1)
    made = found(advantage_estimator="reinforce_plus_plus", scale_rewards="batch")
    assert made == pytest.approx([advantage / (statistics.stdev(plain) + 1e-4) for advantage in plain], rel=1e-5)


def test_gdpo_scales_each_function_by_itself() -> None:
    summed = [0.0] * 6
    for column, weight in enumerate((1.0, 2.0)):
        for first in (0, 3):
            group = REWARDS[first : first + 3, column].tolist()
            for at, reward in enumerate(group):
                summed[first + at] += weight * (reward - statistics.mean(group)) / (statistics.stdev(group) + 1e-8)
    apart = [(reward - statistics.mean(summed)) / (statistics.stdev(summed) + 1e-8) for reward in summed]
    assert found(scale_rewards="gdpo") == pytest.approx(apart, rel=1e-5)


def test_the_distance_from_the_reference_is_taken_off_the_reward() -> None:
    options = GrpoOptions(num_generations=3, scale_rewards="none", beta=0.5)
    made = advantages(REWARDS, WEIGHTS, options, torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0])).tolist()
    assert made[:3] == pytest.approx([0.9 - 3.1 / 3 + 0.5 / 3, 0.2 - 3.1 / 3 + 0.5 / 3, 1.5 - 3.1 / 3 + 0.5 / 3])


@pytest.mark.parametrize("scale", ["group", "batch", "none", "gdpo"])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus"])
def test_answers_without_a_reward_have_no_advantage_and_count_for_nobody(scale: Any, estimator: Any) -> None:
    nan = float("nan")
    rewards = torch.tensor([[1.0], [nan], [0.0], [nan], [nan], [nan], [2.0], [2.0], [2.0]])
    options = GrpoOptions(num_generations=3, scale_rewards=scale, advantage_estimator=estimator)
    made = advantages(rewards, torch.ones(1), options)
    assert made.isfinite().all()
    if scale == "group":
        assert made[0] == -made[2] > 0
    if scale != "gdpo":  # which is also relative to the whole batch
        assert made[1] == 0 and not made[3:].any()


def test_groups_with_and_without_a_signal() -> None:
    nan = float("nan")
    totals = total_rewards(
        torch.tensor([[0.1, 0.2], [0.3, 0.0], [nan, 1.0], [nan, nan], [1.0, nan], [0.0, nan]]), WEIGHTS
    )
    assert totals[:3].tolist() == pytest.approx([0.5, 0.3, 2.0]) and totals[3].isnan()
    assert has_signal(totals, 2).tolist() == [True, False, True]
