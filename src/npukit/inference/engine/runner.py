"""Runs a step on the device: a pass of decoding with chunks of prompts, as a graph if the device supports it, and a
pass of the prompts that have one of their own.

Nothing here waits for the device. Tokens stay on it from step to step (`Cache.last_tokens`); the host fetches them
later, while the next step may already be running.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor, nn

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.cache import Cache, attention_modules
from npukit.inference.engine.graphs import Graphs
from npukit.inference.engine.inputs import LAST_TOKEN, Inputs, PassInputs, pack_inputs
from npukit.inference.engine.paged import PagedBatch, PagedRows, pack, to_device
from npukit.inference.engine.results import PendingStep, score
from npukit.inference.engine.sampler import ChosenTokens, choose
from npukit.inference.engine.scheduler import MEMORY_BOUND_TOKENS, Chunk, SchedulerOutput, padded
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.tower import Tower
from npukit.launch.abilities import abilities
from npukit.llm.models.vision import language_model


class Runner:
    """A model with its cache. A pass of decoding and prompts has up to `max_num_mixed_tokens` tokens. After up to
    `num_sampled` of them the next token is sampled: more than `max_num_seqs` with draft tokens.
    """

    def __init__(
        self,
        model: Any,
        attention: str,
        cache: Cache,
        adapters: Adapters,
        tower: Tower | None,
        max_num_seqs: int,
        num_sampled: int,
        max_num_mixed_tokens: int,
        graphs: bool,
        compile: bool,
    ) -> None:
        self._model, self._body, self._attention = model, model.base_model, attention
        self.use_paged_attention()
        self._cache, self._adapters, self._tower, self._padding_row = cache, adapters, tower, max_num_seqs
        self.device = cache.last_tokens.device
        num_sampled = max(max_num_seqs, min(num_sampled, MEMORY_BOUND_TOKENS))
        max_tokens = max(max_num_mixed_tokens, padded(num_sampled))
        self._inputs = Inputs(max_tokens, num_sampled, self.device)
        self._graphs = None
        if graphs:
            self._graphs = Graphs(self._compute, self._inputs, adapters, max_tokens, self._padding_row, num_sampled)
        if compile:
            self._compile()

    @property
    def sees(self) -> bool:
        """Whether sequences may have images."""
        return self._tower is not None

    def use_paged_attention(self) -> None:
        """Switch the model to attention over the paged cache."""
        language_model(self._model).set_attn_implementation(self._attention)

    def warm_up(self) -> None:
        """Record all graphs now rather than when they are first needed."""
        if self._graphs is not None:
            with torch.no_grad():
                self._graphs.record()

    def forget_graphs(self) -> None:
        """Record the graphs again when they are next needed, because addresses of weights have changed."""
        if self._graphs is not None:
            self._graphs.forget()

    def _compile(self) -> None:
        """Compile the layers: what lies between two matrix products becomes one kernel.

        Layers share their code, so this is done once for all of them, and for batches of every size.
        """
        # Without this, two sizes that are equal by chance in one batch would be compiled as one.
        torch.fx.experimental._config.use_duck_shape = False
        layers = attention_modules(self._body)
        for stack in language_model(self._model).modules():
            if isinstance(stack, nn.ModuleList) and len(stack) == len(layers):
                for layer in stack:
                    layer.compile(dynamic=True)

    @torch.no_grad()
    def launch(self, step: SchedulerOutput) -> PendingStep:
        """Start a step; its results are in the order of step.sampled."""
        parts = []
        if step.decodes or step.mixed:
            parts.append(self._launch_mixed(step.decodes, step.mixed))
        if step.prefills:
            parts += self._launch_prefill(step.prefills)
        return PendingStep(step, parts, self.device)

    def _launch_mixed(self, decodes: list[Sequence], chunks: list[Chunk]) -> ChosenTokens:
        """A pass in which every token attends on its own, whether it is decoded or of a prompt."""
        cache, graphs = self._cache, self._graphs
        for chunk in chunks:
            if chunk.start:  # the blocks before it may have been computed for another prompt
                cache.set_table(chunk.sequence.row, chunk.sequence.blocks[: -(-chunk.start // cache.block_size)])
        counts = [1 + len(decode.draft_tokens) for decode in decodes] + [chunk.stop - chunk.start for chunk in chunks]
        sampled = [(decode, length) for decode in decodes for length in decode.decode_lengths]
        sampled += [(chunk.sequence, chunk.stop) for chunk in chunks if chunk.is_last]
        tokens = sum(counts)
        size = padded(tokens) if graphs else tokens
        num_sampled = graphs.num_sampled(size) if graphs else len(sampled)
        packed = pack_inputs(decodes, chunks, cache.block_size, size, num_sampled, self._padding_row)
        adapters = [decode.request.adapter for decode in decodes] + [chunk.sequence.request.adapter for chunk in chunks]
        if graphs:
            logits, likeliest = graphs.run(packed, [*adapters, None], [*counts, size - tokens])
        else:
            self._inputs.send(packed)
            self._adapters.select(adapters, counts)
            inputs = self._inputs.on_device(size, num_sampled)
            logits, likeliest = self._compute(inputs, packed[size : 2 * size].tolist())
        return self._choose(logits[: len(sampled)], likeliest[: len(sampled)], sampled)

    def _compute(self, inputs: PassInputs, host_lengths: list[int]) -> tuple[Tensor, Tensor]:
        """Logits and the likeliest token for each sampled place. All memory that it uses stays at its address."""
        rows, lengths, blocks, ids, positions, sampled = inputs
        cache, size = self._cache, self._cache.block_size
        places = lengths - 1
        cache.tables[rows, places // size] = blocks.int()
        ids = torch.where(ids == LAST_TOKEN, cache.last_tokens[rows], ids)
        on_host = host_lengths if abilities(self.device).torch_npu else None
        batch = PagedBatch(blocks * size + places % size, PagedRows(rows, cache.tables[rows], lengths, on_host))
        hidden = self._body(ids[None], position_ids=positions[None], use_cache=False, batch=batch)[0]
        logits = self._logits(hidden[0], sampled)
        tokens = logits.argmax(-1)
        cache.last_tokens[rows[sampled]] = tokens
        return logits, tokens

    def _logits(self, hidden: Tensor, places: Tensor | slice) -> Tensor:
        """The output layer for some tokens of a pass, with their adapters."""
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
        """The last hidden states of all tokens of the chunks, one chunk after another."""
        for chunk in chunks:
            self._cache.set_table(chunk.sequence.row, chunk.sequence.blocks)
        prompts = pack(chunks, self._cache.block_size)
        seen = self._tower.inputs(chunks) if self._tower is not None else {}
        self._adapters.select([chunk.sequence.request.adapter for chunk in chunks], prompts.kind.new)
        ids, slots, *positions = to_device(prompts.inputs, self.device)
        batch = PagedBatch(slots, prompts.kind.to(self.device))
        places = torch.stack(positions)[:, None] if len(positions) > 1 else positions[0][None]
        hidden: Tensor = self._body(ids[None], position_ids=places, use_cache=False, batch=batch, **seen)[0]
        return hidden[0]

    def _choose(
        self, logits: Tensor, tokens: Tensor, sampled: Many[tuple[Sequence, int]], write: bool = False
    ) -> ChosenTokens:
        """The next token of each sequence, given with its length: the likeliest in `tokens`, or the sampler's."""
        chosen = ChosenTokens(tokens)
        if not all(sequence.is_plain for sequence, _ in sampled):
            chosen = choose(logits, [sequence for sequence, _ in sampled], [length for _, length in sampled])
            write = True
        if write:
            rows = to_device(torch.tensor([sequence.row for sequence, _ in sampled]), self.device)
            self._cache.last_tokens[rows] = chosen.tokens
        return chosen
