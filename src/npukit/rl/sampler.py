"""Sample answers from the model that is trained, with the inference engine on its own modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.launch.abilities import abilities
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.prompts import RolloutPrompt
from npukit.rl.samples import RolloutSample


class Sampler:
    """The engine of a model that learns between generations. It holds no weights of its own: adapters are not merged,
    and an update of the optimizer is an update of the sampler.
    """

    def __init__(
        self, model: Any, dtype: torch.dtype, tokenizer: Any, ends: frozenset[int], options: GrpoOptions
    ) -> None:
        """`dtype` is the type that the model computes in, and `ends` are the tokens that end an answer."""
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._tokenizer, self._end_tokens, self._dtype, self._options = tokenizer, ends, dtype, options
        self._engine: Engine | None = None

    @torch.no_grad()
    def sample(self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int]) -> list[RolloutSample]:
        """An answer to each prompt; those to the same prompt follow each other, and share its cache."""
        if not prompts:
            return []
        device = self._model.device
        # A graph would keep the weights that autocast has turned into another type.
        caches = not abilities(device).records_graphs
        with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32, cache_enabled=caches):
            engine = self._awake(len(prompts), max(len(prompt.ids) for prompt in prompts))
            try:
                answers = engine.generate([self._request(*pair) for pair in zip(prompts, seeds, strict=True)])
            finally:
                engine.sleep(self._options.keep_cache)
                self._engine = engine if self._options.keep_cache else None
        for answer in answers:
            if answer.error:
                raise answer.error
        return [self._sample(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    def _awake(self, answers: int, prompt: int) -> Engine:
        """An engine for so many answers after prompts of so many tokens: the kept one, if it is large enough."""
        longest = prompt + self._options.max_completion_length
        if self._engine is not None and self._engine.longest >= longest:
            self._engine.wake_up()
            return self._engine
        options = EngineOptions(
            max_model_len=longest,
            max_num_seqs=min(self._options.max_num_seqs, answers),
            gpu_memory_utilization=self._options.cache_share,
            compile=False,
        )
        return Engine(self._model, options, trained_in=self._dtype)

    def _request(self, prompt: RolloutPrompt, seed: int) -> Request:
        options = self._options
        sampling = SamplingParams(
            max_tokens=options.max_completion_length,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            end_tokens=self._end_tokens,
            seed=seed,
            logprobs=0,
            logprobs_after_temperature=True,
        )
        return Request(prompt.ids, sampling)

    def _sample(self, prompt: RolloutPrompt, answer: Any) -> RolloutSample:
        ids = answer.ids
        visible = ids[:-1] if answer.finish == "stop" else ids
        text = self._tokenizer.decode(visible, skip_special_tokens=True)
        logprobs = np.array([token.logprob for token in answer.tokens], dtype=np.float32)
        return RolloutSample(prompt, np.array(ids, dtype=np.int64), logprobs, text, is_cut=answer.finish == "length")
