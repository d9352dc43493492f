"""The learning rate as a function of the optimizer step alone, so that there is no state to save."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from npukit.train.options import TrainOptions

ONECYCLE_WARMUP, ONECYCLE_START, ONECYCLE_END = 0.3, 1 / 25, 1 / 25e4  # the defaults of torch's OneCycleLR
INVERSE_SQRT_TIMESCALE = 10_000

Shape = Callable[[int], float]


def warmup_steps(options: TrainOptions, total_steps: int) -> int:
    """`warmup` counts steps if it is at least 1; below, it is a share of all steps."""
    return math.ceil(options.warmup * total_steps) if options.warmup < 1 else int(options.warmup)


def shape(options: TrainOptions, total_steps: int) -> Shape:
    """The learning rate at each step, counted from 0, as a factor of the highest.

    >>> linear = shape(TrainOptions(schedule="linear", warmup=2), total_steps=10)
    >>> [linear(step) for step in (0, 1, 2, 6)]
    [0.0, 0.5, 1.0, 0.5]
    """
    warmup = warmup_steps(options, total_steps)
    lowest = options.min_learning_rate / options.learning_rate
    if options.schedule == "onecycle":
        return _onecycle(warmup or int(ONECYCLE_WARMUP * total_steps), total_steps)
    falling: dict[str, Shape] = {
        "constant": lambda step: 1.0,
        "linear": lambda step: _between(lowest, 1 - _share(step, warmup, total_steps)),
        "cosine": lambda step: _between(lowest, _half_cosine(_share(step, warmup, total_steps))),
        "cosine_restarts": lambda step: _restarting(_share(step, warmup, total_steps), options.cycles),
        "polynomial": lambda step: _between(lowest, (1 - _share(step, warmup, total_steps)) ** options.power),
        "inverse_sqrt": lambda step: _inverse_sqrt(step - warmup, warmup or INVERSE_SQRT_TIMESCALE),
        "wsd": lambda step: _between(lowest, 1 - _share(step, round(total_steps * (1 - options.decay)), total_steps)),
    }
    after_warmup = falling[options.schedule]
    return lambda step: step / warmup if step < warmup else after_warmup(step)


def _share(step: int, start: int, end: int) -> float:
    return min(1.0, max(0, step - start) / max(1, end - start))


def _between(lowest: float, height: float) -> float:
    return lowest + (1 - lowest) * height


def _half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * share))


def _restarting(share: float, cycles: int) -> float:
    return _half_cosine(cycles * share % 1) if share < 1 else 0.0


def _inverse_sqrt(steps: int, timescale: int) -> float:
    return 1 / math.sqrt(1 + steps / timescale)


def _onecycle(warmup: int, total_steps: int) -> Shape:
    peak = max(1, warmup - 1)

    def at(step: int) -> float:
        if step <= peak:
            return ONECYCLE_START + (1 - ONECYCLE_START) * (1 - _half_cosine(step / peak))
        return ONECYCLE_END + (1 - ONECYCLE_END) * _half_cosine(_share(step, peak, total_steps - 1))

    return at


class Schedule:
    """Sets the learning rate of every parameter group. The initial one is the group's highest."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: TrainOptions, total_steps: int) -> None:
        self._optimizer = optimizer
        self._shape = shape(options, total_steps)
        self._highest = [float(group["lr"]) for group in optimizer.param_groups]

    def set(self, step: int) -> float:
        """Set the learning rates of the step after `step` finished ones; returns that of the first group."""
        factor = self._shape(step)
        for group, highest in zip(self._optimizer.param_groups, self._highest, strict=True):
            group["lr"] = highest * factor
        return self._highest[0] * factor
