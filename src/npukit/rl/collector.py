"""Collect answers with their rewards. Ranks share the work, and each gets all of the results.

Random numbers depend only on the seed, the generation and an answer's position in it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.data.prompts import RolloutPrompt, RolloutPrompts
from npukit.llm.tasks.task import Log
from npukit.rl.advantages import has_signal, total_rewards
from npukit.rl.rewards.answers import AnswerBatch, RewardProblem
from npukit.rl.rewards.model import ScoringModel
from npukit.rl.rewards.plugin import without_functions
from npukit.rl.rewards.scorer import Scorer
from npukit.rl.sampler import Sampler
from npukit.rl.samples import RolloutSample
from npukit.rl.turns.encoding import TOOLS
from npukit.train.parallel import Parallel
from npukit.train.randomness import seed_of

GYM = "gym_reward"  # the sum of an environment's rewards
TOLD = 3  # how often one kind of problem with a reward function is logged


class Collector:
    """Samples answers and computes their rewards with functions and models."""

    def __init__(
        self,
        config: Config,
        prompts: RolloutPrompts,
        sampler: Sampler,
        scorer: Scorer,
        parallel: Parallel,
        log: Log,
    ) -> None:
        self._config, self._prompts, self._parallel, self._log = config, prompts, parallel, log
        self._sampler, self._scorer, options = sampler, scorer, config.rewards
        self._models = [
            ScoringModel(model, config.model.hub, parallel.device, parallel.dtype) for model in options.models
        ]
        gym = [GYM] * config.grpo.use_gym_env
        self.names = [*self._scorer.names, *(model.name for model in self._models), *gym]
        if not self.names and not config.grpo.teacher:
            raise without_functions(options.plugins)
        if options.weights and len(options.weights) != len(self.names):
            raise NpukitError(f"rewards.weights: there are {len(options.weights)} for {', '.join(self.names)}.")
        self.weights = torch.tensor(options.weights or [1.0] * len(self.names))
        self._told: Counter[tuple[str, str]] = Counter()
        self.begin()

    def begin(self) -> None:
        """Reset the timers of a generation and its counts of failures."""
        self.seconds = {"sampling": 0.0, "rewards": 0.0}
        self.failures: Counter[str] = Counter()

    def collect(
        self, generation: int, prompts: Sequence[RolloutPrompt], step: int, attempt: int = 0
    ) -> list[RolloutSample]:
        """The answers of all ranks to some prompts, group by group."""
        size, parallel = self._config.grpo.num_generations, self._parallel
        places = np.array_split(np.arange(len(prompts) * size), parallel.world_size)[parallel.rank].tolist()
        seeds = [
            seed_of(self._config.training.seed, generation, attempt, place // size, place % size) for place in places
        ]
        shares = parallel.gather(self._answer([prompts[place // size] for place in places], seeds, step))
        self._log_problems([problem for _, problems in shares for problem in problems])
        return [sample for samples, _ in shares for sample in samples]

    def answer(self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int], step: int) -> list[RolloutSample]:
        """This rank's answers to some prompts, one each."""
        samples, problems = self._answer(prompts, seeds, step)
        self._log_problems(problems)
        return samples

    def _answer(
        self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int], step: int
    ) -> tuple[list[RolloutSample], list[RewardProblem]]:
        began = time.perf_counter()
        samples = self._sampler.sample(prompts, seeds)
        self._parallel.model.train()
        sampled = time.perf_counter()
        answers = AnswerBatch(
            [[message for message in sample.prompt.messages if message["role"] != TOOLS] for sample in samples],
            [sample.text for sample in samples],
            [sample.ids.tolist() for sample in samples],
            [sample.prompt.columns for sample in samples],
            step,
            [sample.messages for sample in samples],
            [{"num_turns": sample.turns, **sample.infos} for sample in samples],
        )
        rewards, problems = self._scorer.score(answers)
        scores = [model.score(answers) for model in self._models]
        if self._config.grpo.use_gym_env:
            scores.append([_number(sample.infos.get("total_reward")) for sample in samples])
        self.seconds["sampling"] += sampled - began
        self.seconds["rewards"] += time.perf_counter() - sampled
        rewarded = [[*row, *more] for row, *more in zip(rewards, *scores, strict=True)]
        whole = [replace(sample, rewards=row) for sample, row in zip(samples, rewarded, strict=True)]
        return whole, [*(self._problem(sample) for sample in samples if sample.problem), *problems]

    def _problem(self, sample: RolloutSample) -> RewardProblem:
        if not self._config.grpo.has_turns:
            return RewardProblem(str(sample.prompt.number), "length", sample.problem, of="prompt")
        name = self._config.grpo.multi_turn_scheduler or "tools"
        return RewardProblem(name, "raised", sample.problem, sample.text, "scheduler")

    def replaced(self, generation: int, samples: list[RolloutSample], step: int) -> list[RolloutSample]:
        """Replace groups from which nothing can be learned by groups for other prompts (DAPO's dynamic sampling)."""
        size = self._config.grpo.num_generations
        for attempt in range(1, self._config.grpo.max_resample_times + 1):
            empty = (~has_signal(self.totals(samples), size)).nonzero().flatten().tolist()
            if not empty:
                break
            draw = np.random.default_rng(seed_of(self._config.training.seed, generation, attempt))
            numbers = draw.integers(len(self._prompts), size=len(empty)).tolist()
            others = self.collect(generation, [self._prompts[number] for number in numbers], step, attempt)
            useful = has_signal(self.totals(others), size).nonzero().flatten().tolist()
            for group, other in zip(empty, useful, strict=False):
                samples[group * size : (group + 1) * size] = others[other * size : (other + 1) * size]
        return samples

    def totals(self, samples: Sequence[RolloutSample]) -> Tensor:
        """The total reward of each answer."""
        return total_rewards(torch.tensor([sample.rewards for sample in samples]), self.weights)

    def _log_problems(self, problems: Sequence[RewardProblem]) -> None:
        for problem in problems:
            self.failures[problem.figure] += 1
            kind = (problem.figure, problem.kind)
            self._told[kind] += 1
            if self._told[kind] <= TOLD:
                more = " (Further ones are only counted.)" if self._told[kind] == TOLD else ""
                self._log(f"Warning: {problem}{more}")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan
