"""Evaluation: the model's metrics, and whether they still improve."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.train.data import Data
from npukit.train.options import TrainOptions
from npukit.train.parallel import Parallel

LOSS = "eval_loss"  # the metric if none are given
Metrics = Callable[[nn.Module, Any], Mapping[str, Tensor | float]]


def evaluate(parallel: Parallel, data: Data, metrics: Metrics, beat: Callable[[], None]) -> dict[str, float]:
    """The mean of each metric as eval_NAME, over the items of all batches that have it, on all ranks."""
    sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=parallel.device))
    items: dict[str, int] = defaultdict(int)
    parallel.share_buffers()
    parallel.model.eval()
    with torch.no_grad():
        for batches in data.steps():
            for batch in batches:
                with parallel.autocast():
                    values = metrics(parallel.model, parallel.move(batch.content))
                for name, mean in _numbers(values, parallel.device):
                    sums[name] += mean * batch.weight if batch.weight else 0.0  # not NaN times 0
                    items[name] += batch.weight
            beat()
    parallel.model.train()
    names = dict.fromkeys(name for own in parallel.gather(list(sums)) for name in own)
    if not names:
        raise NpukitError("metrics returned no value for any batch.")
    table = torch.stack([torch.stack([sums[name], sums[name].new_tensor(items[name])]) for name in names])
    return {
        f"eval_{name}": total / (count or math.nan)
        for name, (total, count) in zip(names, parallel.sum(table).tolist(), strict=True)
    }


def _numbers(returned: Any, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    if not isinstance(returned, Mapping):
        raise NpukitError(
            f'metrics returned {type(returned).__name__}: it must return values by name, such as {{"accuracy": …}}.'
        )
    for name, value in returned.items():
        number = torch.as_tensor(value, dtype=torch.float32, device=device)
        if number.numel() != 1:
            raise NpukitError(
                f"metrics returned {name} with shape {tuple(number.shape)}: it must be one number, the mean."
            )
        yield name, number.reshape(())


def check_best(options: TrainOptions, has_data: bool, own_metrics: bool) -> None:
    """Refuse before the run what would only fail in an evaluation."""
    if options.early_stopping and not options.eval_every:
        raise NpukitError("early_stopping counts evaluations: set eval_every as well.")
    if options.eval_every and not has_data:
        raise NpukitError("eval_every is set, but there is no evaluation data.")
    if options.load_best and not (has_data and options.save_every):
        raise NpukitError("load_best needs evaluation data and checkpoints: set eval_every and save_every.")
    if has_data and not own_metrics and options.best_metric != LOSS:
        raise NpukitError(f"best_metric is {options.best_metric}, but only {LOSS} is evaluated.")


@dataclass
class Best:
    """The best evaluation so far, and how many were worse since."""

    step: int | None = None
    value: float | None = None
    worse_since: int = 0

    def is_better(self, options: TrainOptions, step: int, metrics: Mapping[str, float]) -> bool:
        """Compare an evaluation with the best one; returns whether it is better."""
        if options.best_metric not in metrics:
            if options.early_stopping or options.load_best or options.best_metric != LOSS:
                known = ", ".join(metrics)
                raise NpukitError(f"best_metric: {options.best_metric} is not among the evaluated metrics: {known}.")
            return False
        value = metrics[options.best_metric]
        if self._beats(value, options.best_is_highest):
            self.step, self.value, self.worse_since = step, value, 0
            return True
        self.worse_since += 1
        return False

    def describe(self, metric: str) -> str | None:
        return None if self.value is None else f"{metric} {self.value:.4f} at step {self.step}"

    def _beats(self, value: float, best_is_highest: bool) -> bool:
        if self.value is None:
            return not math.isnan(value)
        return value > self.value if best_is_highest else value < self.value
