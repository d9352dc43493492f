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
from npukit.inference.engine.mtp import MultiTokenPrediction
from npukit.inference.engine.paged import PagedBatch, PagedRows, pack, to_device
from npukit.inference.engine.results import PendingStep, score
from npukit.inference.engine.sampler import ChosenTokens, choose
from npukit.inference.engine.scheduler import MEMORY_BOUND_TOKENS, Chunk, SchedulerOutput, padded
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.states import States
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
        states: States,
        adapters: Adapters,
        tower: Tower | None,
        max_num_seqs: int,
        num_sampled: int,
        max_num_mixed_tokens: int,
        graphs: bool,
        compile: bool,
        mtp: MultiTokenPrediction | None = None,
    ) -> None:
        self._model, self._body, self._attention = model, model.base_model, attention
        self.use_paged_attention()
        self._cache, self._adapters, self._tower, self._padding_row = cache, adapters, tower, max_num_seqs
        self._states, self._mtp = states, mtp
        self._scale = _scale(model.config.get_text_config())
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
        if self._mtp is not None:
            self._mtp.forget()
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
        inputs, host_lengths = self._inputs.on_device(size, num_sampled), packed[size : 2 * size].tolist()
        if graphs:
            logits, likeliest, hidden = graphs.run(packed, [*adapters, None], [*counts, size - tokens])
        else:
            self._inputs.send(packed)
            self._adapters.select(adapters, counts)
            logits, likeliest, hidden = self._compute(inputs, host_lengths)
        chosen = self._choose(logits[: len(sampled)], likeliest[: len(sampled)], sampled)
        if self._mtp is not None:
            places, batch = inputs.sampled[: len(sampled)], self._batch(inputs, host_lengths)
            following = self._following(chunks, size, places, chosen.tokens, sum(counts[: len(decodes)]))
            self._mtp.read(hidden, following, inputs.positions[None], batch, places, sampled)
        return chosen

    def _compute(self, inputs: PassInputs, host_lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits and the likeliest token for each sampled place, and the last hidden states of all tokens. All memory
        that it uses stays at its address.
        """
        cache, (rows, lengths, blocks, ids, positions, sampled) = self._cache, inputs
        cache.tables[rows, (lengths - 1) // cache.block_size] = blocks.int()
        ids = torch.where(ids == LAST_TOKEN, cache.last_tokens[rows], ids)
        batch = self._batch(inputs, host_lengths)
        with self._states.within(batch.kind):
            hidden = self._body(ids[None], position_ids=positions[None], use_cache=False, batch=batch)[0][0]
        logits = self._logits(hidden, sampled)
        tokens = logits.argmax(-1)
        cache.last_tokens[rows[sampled]] = tokens
        return logits, tokens, hidden

    def _batch(self, inputs: PassInputs, host_lengths: list[int]) -> PagedBatch:
        cache, size = self._cache, self._cache.block_size
        slots = inputs.blocks * size + (inputs.lengths - 1) % size
        on_host = host_lengths if abilities(self.device).torch_npu else None
        return PagedBatch(slots, PagedRows(inputs.rows, cache.tables[inputs.rows], inputs.lengths, on_host))

    def _following(
        self, chunks: list[Chunk], size: int, places: Tensor, chosen: Tensor | None, first: int = 0
    ) -> Tensor:
        """The token after each of a pass: the one chosen at these places, and in prompts, from the `first` token on,
        the next one.
        """
        tokens = torch.zeros(size, dtype=torch.int64)
        for chunk in chunks:
            known = chunk.sequence.tokens[chunk.start + 1 : chunk.stop + 1]
            tokens[first : first + len(known)] = torch.tensor(known)
            first += chunk.stop - chunk.start
        following = to_device(tokens, self.device)
        return following if chosen is None else following.index_copy_(0, places, chosen)

    def _logits(self, hidden: Tensor, places: Tensor | slice) -> Tensor:
        """The output layer for some tokens of a pass, with their adapters."""
        with self._adapters.at(places):
            logits: Tensor = self._model.get_output_embeddings()(hidden[places])
        return logits if self._scale == 1 else logits * self._scale

    def _launch_prefill(self, chunks: list[Chunk]) -> list[ChosenTokens]:
        hidden, positions, batch = self._prefill(chunks)
        ends, end = [], 0
        for chunk in chunks:
            if chunk.sequence.request.prompt_logprobs is not None:
                score(chunk, lambda start, stop, at=end: self._logits(hidden, slice(at + start, at + stop)))  # type: ignore[misc]
            end += chunk.stop - chunk.start
            ends.append(end - 1)
        finished = [place for place, chunk in zip(ends, chunks, strict=True) if chunk.is_last]
        places = to_device(torch.tensor(finished, dtype=torch.int64), self.device)
        sampled = [(chunk.sequence, chunk.stop) for chunk in chunks if chunk.is_last]
        chosen = []
        if finished:
            logits = self._logits(hidden, places)
            chosen.append(self._choose(logits, logits.argmax(-1), sampled, write=True))
        if self._mtp is not None:
            following = self._following(chunks, len(hidden), places, chosen[0].tokens if chosen else None)
            self._mtp.read(hidden, following, positions, batch, places, sampled)
        return chosen

    def _prefill(self, chunks: list[Chunk]) -> tuple[Tensor, Tensor, PagedBatch]:
        """The last hidden states of all tokens of the chunks, one chunk after another, and where they are."""
        for chunk in chunks:
            self._cache.set_table(chunk.sequence.row, chunk.sequence.blocks)
        prompts = pack(chunks, self._cache.block_size)
        seen = self._tower.inputs(chunks) if self._tower is not None else {}
        self._adapters.select([chunk.sequence.request.adapter for chunk in chunks], prompts.kind.new)
        ids, slots, *positions = to_device(prompts.inputs, self.device)
        batch = PagedBatch(slots, prompts.kind.to(self.device))
        places = torch.stack(positions)[:, None] if len(positions) > 1 else positions[0][None]
        with self._states.within(batch.kind):
            hidden: Tensor = self._body(ids[None], position_ids=places, use_cache=False, batch=batch, **seen)[0]
        return hidden[0], places, batch

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


def _scale(config: Any) -> float:
    """What the output layer's results are multiplied with, by the names that configurations have for it. Models of
    families that npukit does not know are compared with their own code before they are served.
    """
    factor = float(getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1)
    return factor / float(getattr(config, "logits_scaling", None) or 1)
