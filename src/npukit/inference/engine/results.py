"""The results of a step: tokens on the device, which the host fetches when it needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from npukit.inference.engine.request import Token
from npukit.inference.engine.sampler import ChosenTokens, chosen_of
from npukit.inference.engine.scheduler import Chunk, SchedulerOutput
from npukit.launch.abilities import abilities

# Logits of this many tokens of a prompt are computed at once; those of a long prompt would be large.
_ROWS = 128


class PendingStep:
    """A launched step; `parts` are its results in the order of `scheduled.sampled`."""

    def __init__(self, scheduled: SchedulerOutput, parts: list[ChosenTokens], device: torch.device) -> None:
        self.scheduled = scheduled
        self._parts = [_to_host(part) for part in parts]
        self._done: Any = None
        if abilities(device).own_memory:
            self._done = torch.get_device_module(device).Event()
            self._done.record()

    def tokens(self) -> Iterator[list[Token]]:
        """Wait for the device; the tokens of each sequence in `scheduled.sampled`, more than one with draft tokens."""
        if self._done is not None:
            self._done.synchronize()
        counts = [1 + len(sequence.draft_tokens) for sequence in self.scheduled.sampled]
        logprob_counts = [
            sequence.request.sampling.logprobs
            for sequence, count in zip(self.scheduled.sampled, counts, strict=True)
            for _ in range(count)
        ]
        tokens: list[Token] = []
        for part in self._parts:
            tokens += _tokens(part, logprob_counts[len(tokens) : len(tokens) + len(part.tokens)])
        remaining = iter(tokens)
        return (list(islice(remaining, count)) for count in counts)


def score(chunk: Chunk, logits: Callable[[int, int], Tensor]) -> None:
    """Store the log-probabilities of a chunk's prompt tokens. `logits(start, stop)` computes the chunk's logits."""
    with chunk.sequence.errors_kept():
        _score(chunk, logits)


def _score(chunk: Chunk, logits: Callable[[int, int], Tensor]) -> None:
    sequence = chunk.sequence
    prompt, known, top = sequence.request.prompt, sequence.prompt_logprobs, sequence.request.prompt_logprobs
    if not known:
        known.append(Token(prompt[0]))  # nothing comes before it
    for start in range(len(known), min(chunk.stop + 1, len(prompt)), _ROWS):
        stop = min(start + _ROWS, chunk.stop + 1, len(prompt))
        logprobs = logits(start - 1 - chunk.start, stop - 1 - chunk.start).float().log_softmax(-1)
        ids = torch.tensor(prompt[start:stop], device=logprobs.device)
        known += _tokens(_to_host(chosen_of(ids, logprobs, top or 0), wait=True), [top] * len(ids))


def _tokens(part: ChosenTokens, logprob_counts: list[int | None]) -> list[Token]:
    ids = part.tokens.tolist()
    if part.logprobs is None:
        return [Token(token) for token in ids]
    logprobs = part.logprobs.tolist()
    if part.top is None:
        wanted = zip(ids, logprobs, logprob_counts, strict=True)
        return [Token(token, None if count is None else logprob) for token, logprob, count in wanted]
    values, top = (column.tolist() for column in part.top)
    return [
        Token(ids[row])
        if count is None
        else Token(ids[row], logprobs[row], tuple(zip(top[row][:count], values[row][:count], strict=True)))
        for row, count in enumerate(logprob_counts)
    ]


def _to_host(part: ChosenTokens, wait: bool = False) -> ChosenTokens:
    def moved(tensor: Tensor) -> Tensor:
        if wait or not abilities(tensor.device).own_memory:
            return tensor.cpu()
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    top = None if part.top is None else (moved(part.top[0]), moved(part.top[1]))
    return ChosenTokens(moved(part.tokens), None if part.logprobs is None else moved(part.logprobs), top)
