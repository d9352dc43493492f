"""Carry out a step on the device: a pass of decoding with the prompts beside it, as a graph where the device has them,
and one of the prompts that have a pass of their own.

Nothing here waits for the device. Tokens stay on it from step to step (`Cache.last`); the host learns them when it
asks for them, by which time the next step may be running.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor, nn

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.cache import Cache, attention_modules
from npukit.inference.engine.graphs import Graphs
from npukit.inference.engine.inputs import NEWEST, Inputs, Pass, lay_out
from npukit.inference.engine.paged import PagedBatch, PagedRows, pack, to_device
from npukit.inference.engine.results import PendingStep, score
from npukit.inference.engine.sampler import ChosenTokens, choose
from npukit.inference.engine.scheduler import CHEAP, Chunk, SchedulerOutput, padded
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.tower import Tower
from npukit.launch.abilities import abilities
from npukit.llm.models.vision import language_model


class Runner:
    """A model with its cache. A pass of decoding and prompts has up to `together` tokens; from up to `picks` of them a
    next one is chosen, which are more than rows where tokens are guessed.
    """

    def __init__(
        self,
        model: Any,
        attention: str,
        cache: Cache,
        adapters: Adapters,
        tower: Tower | None,
        rows: int,
        picks: int,
        together: int,
        graphs: bool,
        compile: bool,
    ) -> None:
        self._model, self._body, self._attention = model, model.base_model, attention
        self.use_paged_attention()
        self._cache, self._adapters, self._tower, self._rows = cache, adapters, tower, rows
        self.device = cache.last.device
        picks = max(rows, min(picks, CHEAP))
        most = max(together, padded(picks))
        self._inputs = Inputs(most, picks, self.device)
        self._graphs = Graphs(self._compute, self._inputs, adapters, most, rows, picks) if graphs else None
        if compile:
            self._compile()

    @property
    def sees(self) -> bool:
        """Whether sequences may have pictures."""
        return self._tower is not None

    def use_paged_attention(self) -> None:
        """From now on the model looks into the cache."""
        language_model(self._model).set_attn_implementation(self._attention)

    def warm_up(self) -> None:
        """Record the graphs now rather than when they are first needed."""
        if self._graphs is not None:
            with torch.no_grad():
                self._graphs.record()

    def forget_graphs(self) -> None:
        """They hold addresses of weights: after these have changed they are made again."""
        if self._graphs is not None:
            self._graphs.forget()

    def _compile(self) -> None:
        """Let the layers be compiled: what lies between matrix products becomes one kernel each.

        Layers share their code, so that this is done once for all of them, and for batches of every size.
        """
        # Two sizes that happen to be equal in one batch are not taken for the same.
        torch.fx.experimental._config.use_duck_shape = False
        layers = attention_modules(self._body)
        for stack in language_model(self._model).modules():
            if isinstance(stack, nn.ModuleList) and len(stack) == len(layers):
                for layer in stack:
                    layer.compile(dynamic=True)

    @torch.no_grad()
    def launch(self, step: SchedulerOutput) -> PendingStep:
        """Start a step; results come in the order of step.sampled."""
        parts = []
        if step.decodes or step.beside:
            parts.append(self._launch_rows(step.decodes, step.beside))
        if step.apart:
            parts += self._launch_prefill(step.apart)
        return PendingStep(step, parts, self.device)

    def _launch_rows(self, decodes: list[Sequence], chunks: list[Chunk]) -> ChosenTokens:
        """A pass in which every token is a row of its own."""
        cache, graphs = self._cache, self._graphs
        for chunk in chunks:
            if chunk.start:  # what comes before may have been computed for another prompt
                cache.set_table(chunk.sequence.row, chunk.sequence.blocks[: -(-chunk.start // cache.block_size)])
        counts = [1 + len(decode.guess) for decode in decodes] + [chunk.stop - chunk.start for chunk in chunks]
        sampled = [(decode, length) for decode in decodes for length in decode.decoded]
        sampled += [(chunk.sequence, chunk.stop) for chunk in chunks if chunk.is_last]
        tokens = sum(counts)
        size = padded(tokens) if graphs else tokens
        picks = graphs.picks(size) if graphs else len(sampled)
        numbers = lay_out(decodes, chunks, cache.block_size, size, picks, spare=self._rows)
        adapters = [decode.request.adapter for decode in decodes] + [chunk.sequence.request.adapter for chunk in chunks]
        if graphs:
            logits, likeliest = graphs.run(numbers, [*adapters, None], [*counts, size - tokens])
        else:
            self._inputs.send(numbers)
            self._adapters.select(adapters, counts)
            logits, likeliest = self._compute(self._inputs.on_device(size, picks), numbers[size : 2 * size].tolist())
        return self._choose(logits[: len(sampled)], likeliest[: len(sampled)], sampled)

    def _compute(self, inputs: Pass, host_lengths: list[int]) -> tuple[Tensor, Tensor]:
        """The next token's logits, and the likeliest token, of each pick. All it works on stays where it is."""
        rows, lengths, blocks, ids, positions, picks = inputs
        cache, size = self._cache, self._cache.block_size
        places = lengths - 1
        cache.tables[rows, places // size] = blocks.int()
        ids = torch.where(ids == NEWEST, cache.last[rows], ids)
        on_host = host_lengths if abilities(self.device).torch_npu else None
        batch = PagedBatch(blocks * size + places % size, PagedRows(rows, cache.tables[rows], lengths, on_host))
        hidden = self._body(ids[None], position_ids=positions[None], use_cache=False, batch=batch)[0]
        logits = self._logits(hidden[0], picks)
        tokens = logits.argmax(-1)
        cache.last[rows[picks]] = tokens
        return logits, tokens

    def _logits(self, hidden: Tensor, places: Tensor | slice) -> Tensor:
        """What the output layer, which an adapter may have changed, makes of these tokens of a pass."""
        with self._adapters.at(places):
            logits: Tensor = self._model.get_output_embeddings()(hidden[places])
        return logits

    def _launch_prefill(self, chunks: list[Chunk]) -> list[ChosenTokens]:
        hidden = self._prefill(chunks)
        ends, end = [], 0
        for chunk in chunks:
            if chunk.sequence.request.prompt_logprobs is not None:
                score(chunk, lambda start, stop, at=end: self._logits(hidden, slice(at + start, at + stop)))  # type: ignore[misc]
            end += chunk.stop - chunk.start
            ends.append(end - 1)
        finished = [place for place, chunk in zip(ends, chunks, strict=True) if chunk.is_last]
        if not finished:
            return []
        logits = self._logits(hidden, to_device(torch.tensor(finished), self.device))
        sampled = [(chunk.sequence, chunk.stop) for chunk in chunks if chunk.is_last]
        return [self._choose(logits, logits.argmax(-1), sampled, write=True)]

    def _prefill(self, chunks: list[Chunk]) -> Tensor:
        """The last hidden states of all tokens of the chunks, one behind the other."""
        for chunk in chunks:
            self._cache.set_table(chunk.sequence.row, chunk.sequence.blocks)
        prompts = pack(chunks, self._cache.block_size)
        seen = self._tower.inputs(chunks) if self._tower is not None else {}
        self._adapters.select([chunk.sequence.request.adapter for chunk in chunks], prompts.kind.new)
        ids, slots, *positions = to_device(prompts.numbers, self.device)
        batch = PagedBatch(slots, prompts.kind.to(self.device))
        places = torch.stack(positions)[:, None] if prompts.has_axes else positions[0][None]
        hidden: Tensor = self._body(ids[None], position_ids=places, use_cache=False, batch=batch, **seen)[0]
        return hidden[0]

    def _choose(
        self, logits: Tensor, tokens: Tensor, sampled: Many[tuple[Sequence, int]], write: bool = False
    ) -> ChosenTokens:
        """The next token of each sequence after so many of its tokens. `tokens` are the likeliest; where more is asked
        for, the sampler's take their place.
        """
        chosen = ChosenTokens(tokens)
        if not all(sequence.is_plain for sequence, _ in sampled):
            chosen = choose(logits, [sequence for sequence, _ in sampled], [length for _, length in sampled])
            write = True
        if write:
            rows = to_device(torch.tensor([sequence.row for sequence, _ in sampled]), self.device)
            self._cache.last[rows] = chosen.tokens
        return chosen
