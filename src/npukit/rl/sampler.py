"""Sample answers from the model that is trained, with the inference engine on its own modules."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.prompt_media import PromptMedia
from npukit.inference.pictures import read
from npukit.launch.abilities import abilities
from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.images.images import Images
from npukit.llm.models.tuning import layers_of
from npukit.rl.layers import SamplerLayers, SamplerWeights
from npukit.rl.samples import Drawn, RolloutSample
from npukit.rl.turns.conversing import Asked, Conversations, Draw

NEVER = -1e4  # added to the logit of a token that answers must not contain


class Sampler:
    """The rollout engine: an inference engine on the model that is trained. It has no weights of its own: adapters are
    not merged, and an optimizer step updates the engine too.
    """

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        tokenizer: Any,
        ends: frozenset[int],
        options: GrpoOptions,
        conversations: Conversations | None = None,
        images: Images | None = None,
    ) -> None:
        """`dtype` is what the model computes in, and `ends` are the tokens that end an answer. Answers have one turn
        unless `conversations` is given; `images` reads the images of a vision-language model.
        """
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._tokenizer, self._end_tokens, self._dtype, self._options = tokenizer, ends, dtype, options
        self._engine: Engine | None = None
        self._made_for = (0, 0)  # tokens per sequence, and concurrent sequences
        self._layers = SamplerLayers(layers_of(self._model))
        self._weights = SamplerWeights(self._model, dtype)
        self._conversations, self._images, self._is_awake = conversations, images, False
        # An image token sampled by the model would have no pixels.
        self._bias = dict.fromkeys(images.token_ids, NEVER) if images else {}

    def sample(self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int]) -> list[RolloutSample]:
        """One answer per prompt. Repeated prompts should be adjacent, and share their cache."""
        if not prompts:
            return []
        with self.awake() as draw:
            if self._conversations:
                return self._conversations.hold(prompts, seeds, draw)
            most = self._options.max_completion_length
            answers = draw([Asked(prompt, (), seed, most) for prompt, seed in zip(prompts, seeds, strict=True)])
        return [_sample(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    @contextmanager
    def awake(self) -> Iterator[Draw]:
        """Inside this context answers can be sampled and their cache is kept; outside it the model can be trained."""
        device = self._model.device
        # A graph would keep weights that autocast has cast to another dtype.
        caches = not abilities(device).records_graphs
        computes = torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32, cache_enabled=caches)
        with torch.no_grad(), computes, self._layers, self._weights:
            self._is_awake = False
            try:
                yield self._draw
            finally:
                if self._engine is not None:
                    self._engine.sleep(self._options.keep_cache)
                    self._engine = self._engine if self._options.keep_cache else None

    def _draw(self, asked: Sequence[Asked]) -> list[Drawn]:
        """Sample an answer for each prompt. If the cache has no room for one, its `problem` says so."""
        engine = self._large_enough(len(asked), max(len(one.ids) + one.most for one in asked))
        room = engine.max_model_len
        fitting = iter(self._answers(engine, [one for one in asked if len(one.ids) < room]))
        return [next(fitting) if len(one.ids) < room else _too_long(len(one.ids), room) for one in asked]

    def _answers(self, engine: Engine, asked: Sequence[Asked]) -> list[Drawn]:
        pictures: dict[tuple[Any, ...], PromptMedia | None] = {}
        for prompt in (one.prompt for one in asked):
            if prompt.content not in pictures:  # shared by all answers to the prompt
                pictures[prompt.content] = self._pictures(prompt)
        with _without_garbage_collection():
            answers = engine.generate([self._request(one, pictures[one.prompt.content]) for one in asked])
        for answer in answers:
            if answer.error:
                raise answer.error
        return [self._drawn(answer) for answer in answers]

    def _large_enough(self, answers: int, longest: int) -> Engine:
        """An engine for this many answers of this length, as far as the model and memory allow: the existing one if it
        is large enough.
        """
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        longest, rows = min(longest, positions or longest), min(answers, self._options.max_num_seqs)
        if self._engine is None or longest > self._made_for[0] or rows > self._made_for[1]:
            if self._engine is not None:  # conversations grow, and the next turn should fit as well
                self._engine.sleep(keep_cache=False)
                longest, rows = max(longest, min(2 * longest, positions or longest)), max(rows, self._made_for[1])
            options = EngineOptions(
                max_model_len=longest, max_num_seqs=rows, gpu_memory_utilization=self._options.cache_share
            )
            self._engine, self._made_for = Engine(self._model, options, trained_in=self._dtype), (longest, rows)
        elif not self._is_awake:
            self._engine.wake_up()
        self._is_awake = True
        return self._engine

    def _pictures(self, prompt: RolloutPrompt) -> PromptMedia | None:
        return read(self._images, prompt.images, prompt.ids) if self._images and prompt.images else None

    def _request(self, asked: Asked, pictures: PromptMedia | None) -> Request:
        options = self._options
        sampling = SamplingParams(
            max_tokens=asked.most,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            end_tokens=self._end_tokens,
            logit_bias=self._bias,
            seed=asked.seed,
            logprobs=0,
            logprobs_after_temperature=True,
        )
        return Request(asked.ids, sampling, media=pictures and pictures.followed_by(len(asked.more)))

    def _drawn(self, answer: Any) -> Drawn:
        ids, has_ended = list(answer.ids), answer.finish_reason == "stop"
        text = self._text(ids[:-1] if has_ended else ids)
        if any(stop in text for stop in self._options.stop):
            ids, has_ended = ids[: self._length_to_stop(ids)], True
            text = self._text(ids)
        return Drawn(ids, [token.logprob for token in answer.tokens[: len(ids)]], text, has_ended)

    def _length_to_stop(self, ids: list[int]) -> int:
        """The number of tokens up to the first stop string."""

        def has_stop(length: int) -> bool:
            text = self._text(ids[:length])
            return any(stop in text for stop in self._options.stop)

        return bisect_left(range(len(ids)), True, key=has_stop)

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector. A generation creates an object for each token, none of them in a cycle, and
    searching all objects of the process for cycles repeatedly would take longer than creating them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _sample(prompt: RolloutPrompt, answer: Drawn) -> RolloutSample:
    ids, logprobs = np.array(answer.ids, dtype=np.int64), np.array(answer.logprobs, dtype=np.float32)
    return RolloutSample(prompt, ids, logprobs, answer.text, is_cut=not answer.has_ended, problem=answer.problem)


def _too_long(tokens: int, room: int) -> Drawn:
    return Drawn(
        [], [], "", False, f"it has {tokens} tokens, and with an answer there is room for {room} in the cache."
    )
