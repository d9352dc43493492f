"""Models whose attention the paged cache does not know: each sequence has a cache of transformers' own.

Slower, since every sequence is a call of its own, but right for whatever transformers can run (latent attention,
layers that look back over a window, linear attention).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.results import Launched, score
from npukit.inference.engine.sampler import choose
from npukit.inference.engine.scheduler import Chunk, Step
from npukit.inference.engine.sequence import Sequence


class OwnCaches:
    """Carries out steps as Runner does, one sequence after the other."""

    def __init__(self, model: Any, adapters: Adapters) -> None:
        self._model, self._adapters = model, adapters
        self.device = model.device

    def warm_up(self) -> None:
        """There is nothing to prepare."""

    def forget_graphs(self) -> None:
        """There are none."""

    @torch.no_grad()
    def launch(self, step: Step) -> Launched:
        """Do a step; results come in the order of step.sampled."""
        logits = [self._decode(sequence) for sequence in step.decodes]
        logits += [last for chunk in step.chunks if (last := self._prefill(chunk)) is not None]
        if not logits:
            return Launched(step, [], self.device)
        chosen = choose(torch.stack(logits), step.sampled, [sequence.cached for sequence in step.sampled])
        return Launched(step, [chosen], self.device)

    def _decode(self, sequence: Sequence) -> Tensor:
        return self._call(sequence, sequence.tokens[-1:])[-1]

    def _prefill(self, chunk: Chunk) -> Tensor | None:
        from transformers import DynamicCache

        if chunk.start == 0:
            chunk.sequence.state = DynamicCache(config=self._model.config)
        logits = self._call(chunk.sequence, chunk.sequence.tokens[chunk.start : chunk.stop])
        if chunk.sequence.request.prompt_logprobs is not None:
            score(chunk, lambda start, stop: logits[start:stop])
        return logits[-1] if chunk.is_last else None

    def _call(self, sequence: Sequence, tokens: list[int]) -> Tensor:
        self._adapters.select([sequence.request.adapter], [len(tokens)])
        keep = 0 if sequence.request.prompt_logprobs is not None else 1
        ids = torch.tensor([tokens], device=self.device)
        result = self._model(ids, past_key_values=sequence.state, use_cache=True, logits_to_keep=keep)
        logits: Tensor = result.logits[0]
        return logits
