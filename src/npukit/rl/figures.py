"""The metrics of a generation, under the names that TRL's users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from npukit.rl.advantages import has_signal
from npukit.rl.samples import RolloutSample


def figures_of(samples: Sequence[RolloutSample], totals: Tensor, names: Sequence[str], size: int) -> dict[str, Tensor]:
    """Rewards, lengths, and the share of groups without a learning signal, the most important first."""
    lengths = torch.tensor([float(len(sample.ids)) for sample in samples])
    is_cut = torch.tensor([sample.is_cut for sample in samples])
    rewards = torch.tensor([sample.rewards for sample in samples])
    values = {
        "reward": totals.nanmean(),
        "completions/mean_length": lengths.mean(),
        "frac_reward_zero_std": (~has_signal(totals, size)).float().mean(),
        "reward_std": _deviation(totals),
        "completions/min_length": lengths.min(),
        "completions/max_length": lengths.max(),
        "completions/clipped_ratio": is_cut.float().mean(),
    }
    if not is_cut.all():
        values["completions/mean_terminated_length"] = lengths[~is_cut].mean()
    if any(sample.loss_mask is not None for sample in samples):
        turns = torch.tensor([float(sample.turns) for sample in samples])
        values |= {"turns/mean": turns.mean(), "turns/max": turns.max()}
        own = torch.tensor([float(sample.mask.sum()) for sample in samples])
        values["completions/mean_sampled"] = own.mean()
    if calls := sum(sample.infos.get("tool_calls", 0) for sample in samples):
        failures = sum(sample.infos.get("tool_failures", 0) for sample in samples)
        values |= {"tools/call_frequency": torch.tensor(calls / len(samples))}
        values |= {"tools/failure_frequency": torch.tensor(failures / calls)}
    for number, name in enumerate(names):
        values[f"rewards/{name}/mean"] = rewards[:, number].nanmean()
        values[f"rewards/{name}/std"] = _deviation(rewards[:, number])
    return {name: value.nan_to_num(0.0) for name, value in values.items()}  # a NaN in a log would hide what follows it


def times(seconds: Mapping[str, float], failures: Mapping[str, int]) -> dict[str, Tensor]:
    """Seconds by phase, and how often reward functions and schedulers failed."""
    by_name = {f"time/{name}": float(value) for name, value in seconds.items()}
    by_name |= {name: float(count) for name, count in failures.items()}
    return {name: torch.tensor(value) for name, value in by_name.items()}


def _deviation(values: Tensor) -> Tensor:
    known = values[~values.isnan()]
    return known.std() if len(known) > 1 else torch.zeros(())
