"""Models whose attention the paged cache does not support: each sequence has a cache of transformers' own.

This is slower, because every sequence is a call of its own, but correct for whatever transformers can run (sparse
attention, sliding windows on NPUs). A model without such a cache (RWKV, the first GPT) reads all tokens of a
sequence in every step: slower still, but correct.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.results import PendingStep, score
from npukit.inference.engine.sampler import choose
from npukit.inference.engine.scheduler import Chunk, SchedulerOutput
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.tower import Tower


class OwnCaches:
    """Runs steps as Runner does, one sequence after another."""

    def __init__(self, model: Any, adapters: Adapters, tower: Tower | None = None) -> None:
        self._model, self._adapters, self._tower = model, adapters, tower
        self.device = model.device
        self._remembers = _remembers(model)

    @property
    def sees(self) -> bool:
        """Whether sequences may have images."""
        return self._tower is not None and self._remembers

    def warm_up(self) -> None:
        """Nothing to prepare."""

    def forget_graphs(self) -> None:
        """There are no graphs."""

    @torch.no_grad()
    def launch(self, step: SchedulerOutput) -> PendingStep:
        """Run a step; its results are in the order of step.sampled."""
        logits = [self._decode(sequence) for sequence in step.decodes]
        logits += [last for chunk in step.chunks if (last := self._prefill(chunk)) is not None]
        if not logits:
            return PendingStep(step, [], self.device)
        chosen = choose(torch.stack(logits), step.sampled, [sequence.num_computed_tokens for sequence in step.sampled])
        return PendingStep(step, [chosen], self.device)

    def _decode(self, sequence: Sequence) -> Tensor:
        return self._call(sequence, len(sequence.tokens) - 1, len(sequence.tokens))[-1]

    def _prefill(self, chunk: Chunk) -> Tensor | None:
        from transformers import DynamicCache

        if chunk.start == 0 and self._remembers:
            chunk.sequence.state = DynamicCache(config=self._model.config)
        seen = self._tower.inputs([chunk]) if self._tower else {}
        if self._tower and (types := self._tower.token_types(chunk)) is not None:
            seen["token_type_ids"] = types
        logits = self._call(chunk.sequence, chunk.start, chunk.stop, **seen)
        if chunk.sequence.request.prompt_logprobs is not None:
            score(chunk, lambda start, stop: logits[start:stop])
        return logits[-1] if chunk.is_last else None

    def _call(self, sequence: Sequence, start: int, stop: int, **seen: Any) -> Tensor:
        """The logits of the tokens from `start` to `stop`, or of the last one only."""
        tokens = sequence.tokens[start if self._remembers else 0 : stop]
        self._adapters.select([sequence.request.adapter], [len(tokens)])
        ids = torch.tensor([tokens], device=self.device)
        if not self._remembers:
            whole: Tensor = self._model(ids, use_cache=False).logits[0, start:]
            return whole
        keep = 0 if sequence.request.prompt_logprobs is not None else 1
        if self._tower and (cross := self._tower.cross(sequence, start, stop)):
            seen["cross"] = cross
        if sequence.has_axes:
            places = torch.from_numpy(sequence.positions(start, stop))[:, None]
            seen["position_ids"] = places.to(self.device)
        called = self._model(ids, past_key_values=sequence.state, use_cache=True, logits_to_keep=keep, **seen)
        logits: Tensor = called.logits[0]
        return logits


@torch.no_grad()
def _remembers(model: Any) -> bool:
    """Whether a cache of transformers takes what came before from one call to the next, of each sequence. Models that
    have their own kind of memory mostly ignore it without a word, and some mix up sequences.
    """
    from transformers import DynamicCache

    ids = torch.arange(1, 13, device=model.device)[None] % model.get_output_embeddings().weight.shape[0]
    try:
        cache = DynamicCache(config=model.config)
        for some in (ids[:, :10], ids[:, 10:11], ids[:, 11:]):
            last = model(some, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()
            model(ids.flip(1), past_key_values=DynamicCache(config=model.config), use_cache=True, logits_to_keep=1)
    except Exception:  # a cache that the model's code cannot use
        return False
    whole = model(ids, use_cache=False).logits[0, -1].float()
    # One that has forgotten is far off; in half precision another expert for a token must not count as that.
    return bool((last - whole).norm() < (1e-3 if model.dtype is torch.float32 else 0.2) * whole.norm())
