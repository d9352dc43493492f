"""Drafts by the model's own layer for multi-token prediction (MTP).

The layer reads along: after each pass of the model it computes the same tokens, each with the one that follows it, and
writes to the same slots of a cache of its own. Its result at a sequence's last token gives the first draft token; for
the others it reads its own results.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.cache import Cache
from npukit.inference.engine.paged import PagedBatch, PagedRows, to_device
from npukit.inference.engine.sequence import Sequence
from npukit.launch.abilities import abilities
from npukit.llm.models.next_tokens import NextTokenLayer


class MultiTokenPrediction:
    """Drafts tokens for all sequences at once, except those with images. The `layer` has its place in the `cache`."""

    def __init__(
        self, model: Any, layer: NextTokenLayer, cache: Cache, adapters: Adapters, num_speculative_tokens: int
    ) -> None:
        self._model, self._layer, self._cache, self._adapters = model, layer, cache, adapters
        self.num_speculative_tokens = num_speculative_tokens
        # Of each sequence with the length that it had then: the layer's result at its last token.
        self._results: dict[tuple[Sequence, int], Tensor] = {}

    def forget(self) -> None:
        """Before a step: what was known of the last one."""
        self._results.clear()

    def read(
        self,
        hidden: Tensor,
        following: Tensor,
        positions: Tensor,
        batch: PagedBatch,
        places: Tensor,
        sampled: Many[tuple[Sequence, int]],
    ) -> None:
        """Compute the tokens of a pass, given their last hidden states [tokens, hidden] and the tokens after them.
        `sampled` are the sequences whose next token was sampled at these `places`, with their lengths.
        """
        results = self._compute(hidden, following, positions, batch)
        self._results.update(zip(sampled, results[places], strict=True))

    @torch.no_grad()
    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[tuple[int, ...]]:
        drafts: list[list[int]] = [[] for _ in sequences]
        rows = [row for row, limit in enumerate(limits) if limit > 0 and sequences[row].request.media is None]
        if not rows:
            return [()] * len(sequences)
        hidden = torch.stack([self._results[sequences[row], len(sequences[row].tokens) - 1] for row in rows])
        tokens = self._choose([sequences[row] for row in rows], hidden)
        steps = [(rows, tokens)]
        for step in range(1, max(limits[row] for row in rows)):
            kept = [index for index, row in enumerate(rows) if limits[row] > step]
            rows = [rows[index] for index in kept]
            own = [sequences[row] for row in rows]
            hidden = self._continue(own, step, hidden[kept], tokens[kept])
            tokens = self._choose(own, hidden)
            steps.append((rows, tokens))
        for rows, tokens in steps:  # only now does the host wait for the device
            for row, token in zip(rows, tokens.tolist(), strict=True):
                drafts[row].append(token)
        return [tuple(draft) for draft in drafts]

    def _choose(self, sequences: list[Sequence], hidden: Tensor) -> Tensor:
        self._select_adapters(sequences)
        tokens: Tensor = self._model.get_output_embeddings()(hidden).argmax(-1)
        return tokens

    def _select_adapters(self, sequences: list[Sequence]) -> None:
        self._adapters.select([sequence.request.adapter for sequence in sequences], [1] * len(sequences))

    def _continue(self, sequences: list[Sequence], step: int, hidden: Tensor, tokens: Tensor) -> Tensor:
        """The layer's results for the draft tokens that it chose last."""
        self._select_adapters(sequences)
        cache, size = self._cache, self._cache.block_size
        lengths = [len(sequence.tokens) + step - 1 for sequence in sequences]
        blocks = [sequence.blocks[(length - 1) // size] for sequence, length in zip(sequences, lengths, strict=True)]
        packed = torch.tensor([[sequence.row for sequence in sequences], lengths, blocks])
        rows, ends, own = to_device(packed, hidden.device)
        places = ends - 1
        cache.tables[rows, places // size] = own.int()
        on_host = lengths if abilities(hidden.device).torch_npu else None
        batch = PagedBatch(own * size + places % size, PagedRows(rows, cache.tables[rows], ends, on_host))
        return self._compute(hidden, tokens, places[None], batch)

    def _compute(self, hidden: Tensor, tokens: Tensor, positions: Tensor, batch: PagedBatch) -> Tensor:
        embedded = self._model.get_input_embeddings()(tokens)
        result: Tensor = self._layer(hidden[None], embedded[None], position_ids=positions, batch=batch)[0]
        return result
