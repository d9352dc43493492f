"""Provide the batches of answers that a trainer learns from in each step.

A generation is sampled, rewarded and compared once, and is learned from in one step or several. Every rank has all of
its answers, so that steps are the same however many ranks share them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npukit.launch.abilities import abilities
from npukit.llm.config.options import Config
from npukit.llm.data.collate import Collator, tokens
from npukit.llm.data.prompts import RolloutPrompt, RolloutPrompts
from npukit.llm.tasks.grpo import groups_per_generation
from npukit.llm.tasks.losses.grpo import weight
from npukit.llm.tasks.task import Log
from npukit.rl.advantages import advantages
from npukit.rl.collector import Collector
from npukit.rl.figures import figures_of, times
from npukit.rl.kept import Kept, view
from npukit.rl.notes import Notes
from npukit.rl.rewards.scorer import Scorer
from npukit.rl.sampler import Sampler
from npukit.rl.samples import RolloutSample, SampleCollator
from npukit.rl.teacher import load_teacher
from npukit.rl.turns.conversing import Conversations
from npukit.rl.turns.encoding import UNLIMITED, TurnEncoder
from npukit.rl.turns.scheduler import SchedulerProcess
from npukit.train.data import Batch, Split
from npukit.train.parallel import Parallel
from npukit.train.randomness import seed_of


class GrpoRollouts:
    """The rollouts of a configuration, with the interface of npukit.train.rollouts."""

    def __init__(
        self,
        config: Config,
        prompts: RolloutPrompts,
        collate: Collator,
        tokenizer: Any,
        end_tokens: frozenset[int],
        log: Log,
    ) -> None:
        self._config, self._options, self._prompts, self._log = config, config.grpo, prompts, log
        self._tokenizer, self._end_tokens, self._pad_id = tokenizer, end_tokens, collate.pad_id
        self._images = collate.images
        self._collate = SampleCollator(collate, self._options.mask_truncated_completions)
        accumulation = config.training.accumulation
        self._parts = (self._options.steps_per_generation or accumulation) // accumulation  # steps sharing answers
        self.repeats = self._parts * self._options.num_iterations
        self.figures: dict[str, Tensor] = {}
        self._samples: list[RolloutSample] = []
        self._kept = Kept(config.training.output)
        self._processes = ExitStack()

    def rows(self, ranks: int) -> int:
        return groups_per_generation(self._config, ranks)

    def begin(self, parallel: Parallel) -> None:
        config, training = self._config, self._config.training
        self._parallel = parallel
        self._split = Split(training.batch_size, training.accumulation, parallel.rank, parallel.world_size)
        placed = (self._tokenizer, parallel.device, parallel.dtype)
        teacher = load_teacher(config, parallel.module, *placed) if self._options.teacher else None
        self._notes = Notes(self._options, self._collate, parallel, self.repeats, teacher)
        conversations = self._conversations(parallel.module.config)
        sampling = (self._tokenizer, self._end_tokens, self._options, conversations, self._images)
        sampler = Sampler(parallel.module, parallel.dtype, *sampling)
        scorer = self._processes.enter_context(Scorer(config.rewards, self._options, list(self._prompts[0].columns)))
        self._collector = Collector(config, self._prompts, sampler, scorer, parallel, self._log)

    def end(self) -> None:
        self._processes.close()

    def _conversations(self, shape: Any) -> Conversations | None:
        """The object that conducts conversations, if answers have several turns."""
        if not self._options.has_turns:
            return None
        encoder = TurnEncoder(self._config, self._tokenizer)
        scheduler = self._processes.enter_context(
            SchedulerProcess(self._options, self._config.rewards, self._tokenizer, encoder.calls)
        )
        text = shape.get_text_config()
        longest = getattr(text, "max_position_embeddings", None) or UNLIMITED
        image_tokens = frozenset(self._images.token_ids if self._images else ())
        return Conversations(self._options, scheduler, encoder, longest, text.vocab_size, image_tokens)

    def batches(self, step: int, rows: Batch) -> list[Batch]:
        generation, turn = divmod(step, self.repeats)
        if turn == 0:
            self._samples = self._generate(generation, step, rows.content)
        return list(self._made(self._dealt(generation)[turn % self._parts], rows.ends_epoch))

    def state_dict(self, step: int) -> dict[str, Any]:
        within = step % self.repeats
        return {"samples": [sample.state_dict() for sample in self._samples] if within else []}

    def load_state_dict(self, step: int, state: dict[str, Any]) -> None:
        self._samples = [RolloutSample.of(saved, self._prompts[saved["number"]]) for saved in state.get("samples", ())]
        if self._parallel.is_main:
            self._kept.forget_after(step)

    def metrics(self, _model: Any, prompts: Sequence[RolloutPrompt]) -> dict[str, float]:
        """The mean reward of one answer to each prompt. `loss` is its negative, so that lower is better."""
        seeds = [seed_of(self._config.training.seed, -1, prompt.number) for prompt in prompts]
        with self._parallel.whole_weights():
            samples = self._collector.answer(prompts, seeds, 0)
        self._parallel.model.eval()
        reward = float(self._collector.totals(samples).nanmean().nan_to_num(0.0))
        return {"loss": -reward, "reward": reward, "length": sum(len(sample.ids) for sample in samples) / len(samples)}

    def _generate(self, generation: int, step: int, given: Sequence[RolloutPrompt]) -> list[RolloutSample]:
        began, collector = time.perf_counter(), self._collector
        collector.begin()
        wanted = self.rows(self._parallel.world_size)
        prompts = [given[number % len(given)] for number in range(wanted)]  # an epoch may end with fewer prompts
        with self._parallel.whole_weights():
            samples = collector.collect(generation, prompts, step)
            totals = collector.totals(samples)
            self.figures = figures_of(samples, totals, collector.names, self._options.num_generations)
            if self._options.dynamic_sample:
                samples = collector.replaced(generation, samples, step)
            self._samples = samples
            self._notes.add(samples, [numbers for part in self._dealt(generation) for _, numbers, _ in part])
        rewards = torch.tensor([sample.rewards for sample in samples])
        values = advantages(rewards, collector.weights, self._options, self._notes.distances(samples)).tolist()
        for sample, advantage in zip(samples, values, strict=True):
            sample.advantage = advantage
        seconds = {**collector.seconds, "generation": time.perf_counter() - began}
        self.figures |= times(seconds, collector.failures)
        self._log_step(step + 1, samples)
        return samples

    def _log_step(self, step: int, samples: list[RolloutSample]) -> None:
        if not self._parallel.is_main:
            return
        self._kept.add(step, samples, self._collector.names, self._collector.totals(samples).tolist())
        if self._options.log_completions and (step == 1 or step % self._config.training.log_every == 0):
            self._log(view(step, samples, self._collector.names))

    def _dealt(self, generation: int) -> list[list[tuple[int, Sequence[int], bool]]]:
        """The indices of this rank's answers in each step of one pass over a generation."""
        order = np.arange(len(self._samples))
        if self._parts > 1:  # otherwise a step would have only a few groups
            order = np.random.default_rng(seed_of(self._config.training.seed, generation)).permutation(order)
        return [list(self._split.deal(part.tolist())) for part in np.array_split(order, self._parts)]

    def _made(self, dealt: list[tuple[int, Sequence[int], bool]], ends_epoch: bool) -> Iterator[Batch]:
        for number, numbers, counts in dealt:
            some = [self._samples[number] for number in numbers]
            content = self._pinned(self._collate(some))
            rows = [sample.prompt.number for sample in some]
            items, size = weight(content, self._options) * counts, tokens(content, self._pad_id) * counts
            yield Batch(content, items, size, number == dealt[-1][0], ends_epoch, rows)

    def _pinned(self, content: dict[str, Any]) -> dict[str, Any]:
        """The batch in pinned memory, because copying other memory would wait for the device to finish its work."""
        if not abilities(self._parallel.device).own_memory:
            return content
        return {name: part.pin_memory() if isinstance(part, Tensor) else part for name, part in content.items()}
