"""Carry out a step on the device: decode with one token a sequence, as a graph where the device has them, and prefill.

Nothing here waits for the device. Tokens stay on it from step to step (`Cache.last`); the host learns them when it
asks a `Launched` step, by which time the next one may be running.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor

from npukit.inference.engine.attention import NAME, Batch, register
from npukit.inference.engine.cache import Cache
from npukit.inference.engine.graphs import Graphs
from npukit.inference.engine.request import Token
from npukit.inference.engine.sampler import Chosen, choose, is_plain
from npukit.inference.engine.scheduler import Chunk, Step
from npukit.inference.engine.sequence import Sequence


class Launched:
    """A step that the device has been told to do."""

    def __init__(self, step: Step, parts: list[Chosen], device: torch.device) -> None:
        self.step = step
        self._parts = [_to_host(part) for part in parts]
        self._done = _record(device)

    def tokens(self) -> list[Token]:
        """What was generated for each of step.sampled; waits for the device."""
        if self._done is not None:
            self._done.synchronize()
        return [
            _token(part, row, sequence) for (part, row), sequence in zip(self._places(), self.step.sampled, strict=True)
        ]

    def _places(self) -> list[tuple[Chosen, int]]:
        return [(part, row) for part in self._parts for row in range(len(part.tokens))]


class Runner:
    """A model with its cache."""

    def __init__(self, model: Any, cache: Cache, rows: int, graphs: bool) -> None:
        register()
        model.set_attn_implementation(NAME)
        self._body, self._head = model.base_model, model.get_output_embeddings()
        self._cache, self._rows = cache, rows
        self.device = cache.last.device
        self.adapters: Any = None
        self._inputs = [_pinned((3, rows), self.device) for _ in range(2)]
        self._on_device = torch.zeros((3, rows), dtype=torch.int64, device=self.device)
        self._graphs = Graphs(self._decode, self._on_device, rows) if graphs else None

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
        host[0, :count] = torch.tensor([sequence.row for sequence in sequences])
        host[1, :count] = torch.tensor(lengths)
        host[2, :count] = torch.tensor([each.blocks[(each.cached - 1) // size] for each in sequences])
        if self._graphs is None:
            self._on_device.copy_(host, non_blocking=True)
            logits, tokens = self._decode(self._on_device[:, :count], lengths)
        else:
            logits, tokens = self._graphs.run(host, lengths)
        return self._choose(logits[:count], tokens[:count], sequences)

    def _decode(self, inputs: Tensor, host_lengths: list[int]) -> tuple[Tensor, Tensor]:
        """The next token's logits, and the likeliest token, of each row. All it works on stays where it is."""
        rows, lengths, blocks = inputs
        cache, size = self._cache, self._cache.block_size
        places = lengths - 1
        cache.tables[rows, places // size] = blocks.int()
        batch = Batch(blocks * size + places % size, cache.tables[rows], lengths, host_lengths=host_lengths)
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
                self._score(chunk, hidden[end : end + chunk.stop - chunk.start])
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
        ids, places, slots, size = [], [], [], self._cache.block_size
        for chunk in chunks:
            self._cache.set_table(chunk.sequence.row, chunk.sequence.blocks)
            place = torch.arange(chunk.start, chunk.stop)
            ids.append(torch.tensor(chunk.sequence.tokens[chunk.start : chunk.stop]))
            places.append(place)
            slots.append(torch.tensor(chunk.sequence.blocks)[place // size] * size + place % size)
        packed = torch.stack([torch.cat(ids), torch.cat(places), torch.cat(slots)]).to(self.device)
        total = tuple(chunk.stop for chunk in chunks)
        rows = torch.tensor([chunk.sequence.row for chunk in chunks], device=self.device)
        batch = Batch(
            packed[2],
            self._cache.tables[rows],
            torch.tensor(total, device=self.device),
            new=tuple(chunk.stop - chunk.start for chunk in chunks),
            total=total,
            block_size=size,
        )
        hidden: Tensor = self._body(packed[:1], position_ids=packed[1:2], use_cache=False, batch=batch)[0]
        return hidden[0]

    def _choose(self, logits: Tensor, tokens: Tensor, sequences: Many[Sequence], write: bool = False) -> Chosen:
        """`tokens` are the likeliest; where more is asked for, the sampler's take their place."""
        chosen = Chosen(tokens)
        if not all(is_plain(each.request.sampling) and each.request.grammar is None for each in sequences):
            chosen = choose(logits, sequences, [sequence.cached for sequence in sequences])
            write = True
        if write:
            rows = torch.tensor([sequence.row for sequence in sequences], device=self.device)
            self._cache.last[rows] = chosen.tokens
        return chosen

    def _score(self, chunk: Chunk, hidden: Tensor) -> None:
        """Note how likely the tokens of a prompt were, each after those before it."""
        sequence = chunk.sequence
        known, prompt = sequence.prompt, sequence.request.prompt
        if not known:
            known.append(Token(prompt[0]))
        first = len(known)  # the first token that has still to be scored, from the hidden state before it
        last = min(chunk.stop, len(prompt) - 1)
        for start in range(first, last + 1, 128):  # all logits at once would be large
            stop = min(start + 128, last + 1)
            logits = self._head(hidden[start - 1 - chunk.start : stop - 1 - chunk.start]).float().log_softmax(-1)
            ids = torch.tensor(prompt[start:stop], device=logits.device)
            wanted = sequence.request.prompt_logprobs
            top = logits.topk(wanted, -1) if wanted else None
            part = Chosen(ids, logits.gather(1, ids[:, None]).squeeze(1), (top.values, top.indices) if top else None)
            part = _to_host(part)
            known += [_make_token(part, row, wanted or 0) for row in range(stop - start)]


def _token(part: Chosen, row: int, sequence: Sequence) -> Token:
    wanted = sequence.request.sampling.logprobs
    if wanted is None:
        return Token(int(part.tokens[row]))
    return _make_token(part, row, wanted)


def _make_token(part: Chosen, row: int, wanted: int) -> Token:
    assert part.logprobs is not None
    top: tuple[tuple[int, float], ...] = ()
    if wanted and part.top is not None:
        values, ids = (column[row, :wanted].tolist() for column in part.top)
        top = tuple(zip(ids, values, strict=True))
    return Token(int(part.tokens[row]), float(part.logprobs[row]), top)


def _to_host(part: Chosen) -> Chosen:
    def moved(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    top = None if part.top is None else (moved(part.top[0]), moved(part.top[1]))
    return Chosen(moved(part.tokens), None if part.logprobs is None else moved(part.logprobs), top)


def _record(device: torch.device) -> Any:
    if device.type == "cpu":
        return None
    event = torch.get_device_module(device).Event()
    event.record()
    return event


def _pinned(shape: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, pin_memory=device.type != "cpu")
