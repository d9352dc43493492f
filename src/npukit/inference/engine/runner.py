"""Carry out a step on the device: decode with one token a sequence, as a graph where the device has them, and prefill.

Nothing here waits for the device. Tokens stay on it from step to step (`Cache.last`); the host learns them when it
asks for them, by which time the next step may be running.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor, nn

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.attention import register
from npukit.inference.engine.cache import Cache, attention_modules
from npukit.inference.engine.graphs import Graphs, Recorder
from npukit.inference.engine.paged import Batch, Decode, Prefill, pack
from npukit.inference.engine.prompt_graphs import PromptGraphs
from npukit.inference.engine.results import Launched, score
from npukit.inference.engine.sampler import Chosen, choose
from npukit.inference.engine.scheduler import Chunk, Step
from npukit.inference.engine.sequence import Sequence


class Runner:
    """A model with its cache."""

    def __init__(self, model: Any, cache: Cache, adapters: Adapters, rows: int, graphs: bool) -> None:
        model.set_attn_implementation(register(model.device.type, model.dtype))
        self._body, self._head = model.base_model, model.get_output_embeddings()
        self._cache, self._adapters = cache, adapters
        self.device = cache.last.device
        self._inputs = [_pinned((3, rows), self.device) for _ in range(2)]
        self._on_device = torch.zeros((3, rows), dtype=torch.int64, device=self.device)
        self._recorder = Recorder(self.device)
        self._graphs = Graphs(self._decode, self._on_device, adapters, self._recorder) if graphs else None
        # An NPU's kernel for prompts wants their lengths from the host, so that no graph can hold it.
        prompts = graphs and self.device.type == "cuda"
        self._prompt_graphs = PromptGraphs(self._compute_prompts, adapters, self._recorder) if prompts else None

    def warm_up(self) -> None:
        """Record the graphs now rather than when they are first needed."""
        with torch.no_grad():
            for graphs in (self._graphs, self._prompt_graphs):
                if graphs is not None:
                    graphs.record()

    def forget_graphs(self) -> None:
        """They hold addresses of weights: after these have changed they are made again."""
        for graphs in (self._graphs, self._prompt_graphs):
            if graphs is not None:
                graphs.forget()
        self._recorder.forget()

    def compile(self) -> None:
        """Let the layers be compiled: what lies between matrix products becomes one kernel each.

        Layers share their code, so that this is done once for all of them, and for batches of every size.
        """
        # Two sizes that happen to be equal in one batch are not taken for the same.
        torch.fx.experimental._config.use_duck_shape = False
        layers = attention_modules(self._body)
        for stack in self._body.modules():
            if isinstance(stack, nn.ModuleList) and len(stack) == len(layers):
                for layer in stack:
                    layer.compile(dynamic=True)

    @torch.no_grad()
    def launch(self, step: Step) -> Launched:
        """Start a step; results come in the order of step.sampled."""
        parts = []
        if step.decodes:
            parts.append(self._launch_decode(step.decodes))
        if step.prefills:
            parts += self._launch_prefill(step.prefills)
        return Launched(step, parts, self.device)

    def _launch_decode(self, sequences: list[Sequence]) -> Chosen:
        count = len(sequences)
        lengths = [sequence.cached for sequence in sequences]
        self._inputs.reverse()  # the device may still be reading what the step before was given
        host, size = self._inputs[0], self._cache.block_size
        rows = [sequence.row for sequence in sequences]
        blocks = [sequence.blocks[(sequence.cached - 1) // size] for sequence in sequences]
        host[:, :count] = torch.tensor([rows, lengths, blocks])
        adapters = [sequence.request.adapter for sequence in sequences]
        if self._graphs is None:
            self._on_device.copy_(host, non_blocking=True)
            self._adapters.select(adapters, [1] * count)
            logits, tokens = self._decode(self._on_device[:, :count], lengths)
        else:
            logits, tokens = self._graphs.run(host, lengths, adapters)
        return self._choose(logits[:count], tokens[:count], sequences)

    def _decode(self, inputs: Tensor, host_lengths: list[int]) -> tuple[Tensor, Tensor]:
        """The next token's logits, and the likeliest token, of each row. All it works on stays where it is."""
        rows, lengths, blocks = inputs
        cache, size = self._cache, self._cache.block_size
        places = lengths - 1
        cache.tables[rows, places // size] = blocks.int()
        on_host = host_lengths if self.device.type == "npu" else None
        batch = Batch(blocks * size + places % size, Decode(cache.tables[rows], lengths, on_host))
        hidden = self._body(cache.last[rows][None], position_ids=places[None], use_cache=False, batch=batch)[0]
        logits = self._head(hidden[0])
        tokens = logits.argmax(-1)
        cache.last[rows] = tokens
        return logits, tokens

    def _launch_prefill(self, chunks: list[Chunk]) -> list[Chosen]:
        hidden = self._prefill(chunks)
        ends, end = [], 0
        for chunk in chunks:
            if chunk.sequence.request.prompt_logprobs is not None:
                own = hidden[end : end + chunk.stop - chunk.start]
                score(chunk, lambda start, stop, own=own: self._head(own[start:stop]))  # type: ignore[misc]
            end += chunk.stop - chunk.start
            ends.append(end - 1)
        finished = [place for place, chunk in zip(ends, chunks, strict=True) if chunk.is_last]
        if not finished:
            return []
        logits = self._head(hidden[torch.tensor(finished, device=self.device)])
        sequences = [chunk.sequence for chunk in chunks if chunk.is_last]
        return [self._choose(logits, logits.argmax(-1), sequences, write=True)]

    def _prefill(self, chunks: list[Chunk]) -> Tensor:
        """The last hidden states of all tokens of the chunks, one behind the other."""
        for chunk in chunks:
            self._cache.set_table(chunk.sequence.row, chunk.sequence.blocks)
        prompts = pack(chunks, self._cache.block_size)
        adapters = [chunk.sequence.request.adapter for chunk in chunks]
        if self._prompt_graphs is not None and self._prompt_graphs.fit(prompts):
            return self._prompt_graphs.run(prompts, adapters)
        self._adapters.select(adapters, prompts.kind.new)
        return self._compute_prompts(prompts.numbers.to(self.device), prompts.kind.to(self.device))

    def _compute_prompts(self, numbers: Tensor, kind: Prefill) -> Tensor:
        batch = Batch(numbers[2], kind)
        hidden: Tensor = self._body(numbers[:1], position_ids=numbers[1:2], use_cache=False, batch=batch)[0]
        return hidden[0]

    def _choose(self, logits: Tensor, tokens: Tensor, sequences: Many[Sequence], write: bool = False) -> Chosen:
        """`tokens` are the likeliest; where more is asked for, the sampler's take their place."""
        chosen = Chosen(tokens)
        if not all(sequence.is_plain for sequence in sequences):
            chosen = choose(logits, sequences, [sequence.cached for sequence in sequences])
            write = True
        if write:
            rows = torch.tensor([sequence.row for sequence in sequences], device=self.device)
            self._cache.last[rows] = chosen.tokens
        return chosen


def _pinned(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, pin_memory=device.type != "cpu")
