"""Compute log-probabilities of answers before the first update from them, in the batches of the training steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.tasks.losses.grpo import log_probabilities
from npukit.rl.reference import InitialWeights
from npukit.rl.samples import Floats, RolloutSample, SampleCollator
from npukit.train.parallel import Parallel


class Notes:
    """Computes the old, reference and teacher log-probabilities that a loss needs, and which tokens count."""

    def __init__(
        self, options: GrpoOptions, collate: SampleCollator, parallel: Parallel, repeats: int, teacher: Any = None
    ) -> None:
        self._options, self._collate, self._parallel = options, collate, parallel
        with parallel.whole_weights():
            self._reference = InitialWeights(parallel.module) if options.beta else None
        self._teacher = teacher
        self._masks = options.top_entropy_quantile < 1
        self._keeps_old = repeats > 1 or self._masks or (options.kl_in_reward and options.beta > 0)

    def add(self, samples: Sequence[RolloutSample], batches: Sequence[Sequence[int]]) -> None:
        """Add them to the samples with these indices, from which this rank learns."""
        entropies: dict[int, Floats] = {}
        for numbers in batches if self._keeps_old or self._reference or self._teacher else ():
            some = [samples[number] for number in numbers]
            batch = self._parallel.move(self._collate(some))
            if self._keeps_old:
                old, entropy = self._think(self._parallel.module, batch)
                _note("old", old, some)
                entropies |= dict(zip(numbers, _rows(entropy, some), strict=True))
            if self._reference:
                with self._reference:
                    _note("reference", self._think(self._parallel.module, batch)[0], some)
            if self._teacher:
                _note("teacher", self._think(self._teacher, batch)[0], some)
        if self._masks:
            own = {number: row[samples[number].mask > 0] for number, row in entropies.items()}
            known = [row for part in self._parallel.gather(own) for row in part.values()]
            least = np.quantile(np.concatenate(known), 1 - self._options.top_entropy_quantile)
            for number, entropy_row in entropies.items():
                samples[number].noted["learns"] = (entropy_row >= least).astype(np.float32)

    def distances(self, samples: Sequence[RolloutSample]) -> Tensor | None:
        """How much likelier the policy finds each answer than the reference does, if rewards are reduced by this."""
        if not (self._reference and self._options.kl_in_reward):
            return None
        own = {
            number: float(((sample.noted["old"] - sample.noted["reference"]) * sample.mask).sum())
            for number, sample in enumerate(samples)
            if sample.noted
        }
        all_ranks = {number: distance for part in self._parallel.gather(own) for number, distance in part.items()}
        return torch.tensor([all_ranks[number] for number in range(len(samples))])

    @torch.no_grad()
    def _think(self, model: Any, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        with self._parallel.autocast():
            return log_probabilities(model, batch, self._options.temperature)


def _note(name: str, values: Tensor, samples: Sequence[RolloutSample]) -> None:
    for sample, row in zip(samples, _rows(values, samples), strict=True):
        sample.noted[name] = row


def _rows(values: Tensor, samples: Sequence[RolloutSample]) -> list[Floats]:
    """The row of each sample, without its padding."""
    table = values.float().cpu().numpy()
    return [row[: len(sample.ids)].copy() for row, sample in zip(table, samples, strict=True)]
