"""Compute how much better than expected each answer was."""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.llm.config.reinforcement import GrpoOptions

_SMALL = 1e-4  # added to a standard deviation before dividing by it, as in TRL
_SMALL_GDPO = 1e-8


def total_rewards(rewards: Tensor, weights: Tensor) -> Tensor:
    """The total reward of each answer, from the rewards of all functions [answers, functions], where NaN means none.

    The result is NaN for an answer that no function rewarded.

    >>> total_rewards(torch.tensor([[1.0, 0.5], [float("nan"), float("nan")]]), torch.tensor([1.0, 2.0]))
    tensor([2., nan])
    """
    total = (rewards * weights).nansum(1)
    return total.masked_fill(rewards.isnan().all(1), torch.nan)


def advantages(rewards: Tensor, weights: Tensor, options: GrpoOptions, distance: Tensor | None = None) -> Tensor:
    """The advantage of each answer. Answers to the same prompt are adjacent.

    An answer without a reward has no advantage and does not affect the others in its group. `distance`, which is how
    far each answer is from the reference, is subtracted from its reward.

    >>> advantages(torch.tensor([[1.0], [0.0]]), torch.ones(1), GrpoOptions(num_generations=2, scale_rewards="none"))
    tensor([ 0.5000, -0.5000])
    """
    total = total_rewards(rewards, weights)
    if distance is not None:
        total = total - options.beta * distance
    if options.scale_rewards == "gdpo":
        return _gdpo(rewards, weights, options.num_generations)
    groups = total.view(-1, options.num_generations)
    better = groups - groups.nanmean(1, keepdim=True)
    if options.advantage_estimator == "rloo":  # the mean of the other answers
        count = (~groups.isnan()).sum(1, keepdim=True)
        better = better * count / (count - 1).clamp(min=1)
    scaled = better if options.advantage_estimator == "reinforce_plus_plus" else groups
    if options.scale_rewards == "group":
        better = better / (_deviation(scaled, _SMALL)[:, None])
    elif options.scale_rewards == "batch":
        better = better / _deviation(scaled.flatten()[None], _SMALL)
    return better.flatten().nan_to_num(0.0)


def _gdpo(rewards: Tensor, weights: Tensor, size: int) -> Tensor:
    """Normalise each function within its group, so that none dominates, then normalise the sum over the batch."""
    total = torch.zeros(len(rewards), dtype=rewards.dtype)
    for function, weight in zip(rewards.T, weights, strict=True):
        groups = function.reshape(-1, size)
        better = (groups - groups.nanmean(1, keepdim=True)) / _deviation(groups, _SMALL_GDPO)[:, None]
        total += weight * better.flatten().nan_to_num(0.0)
    return (total - total.mean()) / _deviation(total[None], _SMALL_GDPO)


def has_signal(totals: Tensor, size: int) -> Tensor:
    """Whether the answers of each group have different rewards, so that there is something to learn.

    >>> has_signal(torch.tensor([1.0, 1.0, 0.0, 1.0]), 2)
    tensor([False,  True])
    """
    groups = totals.view(-1, size)
    lowest, highest = groups.nan_to_num(torch.inf).amin(1), groups.nan_to_num(-torch.inf).amax(1)
    return highest - lowest > 1e-6


def _deviation(groups: Tensor, more: float) -> Tensor:
    """The standard deviation (n - 1) of each row, ignoring missing values; NaN for a single value."""
    known = ~groups.isnan()
    count = known.sum(1)
    apart = (groups - groups.nanmean(1, keepdim=True)).nan_to_num(0.0)
    return (apart.square().sum(1) / (count - 1).clamp(min=1)).sqrt() + more
