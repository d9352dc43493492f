"""Guess the next tokens of answers, so that one pass of the model gives several (speculative decoding).

What is guessed is computed in the same pass as the next token. As much of it as the model would have chosen anyway is
kept, so every answer stays what it was; a guess only decides how many passes it takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Protocol

from npukit.inference.engine.request import Request, RequestOutput, SamplingParams
from npukit.inference.engine.sequence import Sequence


class Proposer(Protocol):
    """What makes the guesses."""

    num_speculative_tokens: int  # for each answer at most

    def propose(self, sequences: list[Sequence], most: list[int]) -> list[tuple[int, ...]]:
        """What may follow each of these sequences, up to so many tokens."""


class PromptLookup:
    """Takes what followed the same tokens earlier in the prompt or the answer."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def propose(self, sequences: list[Sequence], most: list[int]) -> list[tuple[int, ...]]:
        return [sequence.lookup.guess(sequence.tokens, limit) for sequence, limit in zip(sequences, most, strict=True)]


class DraftModel:
    """Takes what a smaller model with the same tokenizer would say, all sequences at once.

    It is an engine of its own, whose prefix cache keeps what it has read of each sequence. It is given neither pictures
    nor adapters, without which its guesses are worse. `words` is how many tokens both models have: one of them may have
    rows beyond, which stand for no token.
    """

    def __init__(
        self,
        generate: Callable[[Iterable[Request]], list[RequestOutput]],
        longest: int,
        words: int,
        num_speculative_tokens: int,
    ) -> None:
        self._generate, self._longest, self._words = generate, longest, words
        self.num_speculative_tokens = num_speculative_tokens

    def propose(self, sequences: list[Sequence], most: list[int]) -> list[tuple[int, ...]]:
        requests = {
            index: Request(tuple(sequence.tokens), SamplingParams(temperature=0, max_tokens=limit))
            for index, (sequence, limit) in enumerate(zip(sequences, most, strict=True))
            if self._can_read(sequence, limit)
        }
        guesses: list[tuple[int, ...]] = [()] * len(sequences)
        for index, output in zip(requests, self._generate(requests.values()), strict=True):
            guesses[index] = tuple(itertools.takewhile(lambda token: token < self._words, output.ids))
        return guesses

    def _can_read(self, sequence: Sequence, limit: int) -> bool:
        if limit <= 0 or sequence.request.multimodal is not None or len(sequence.tokens) + limit > self._longest:
            return False
        return max(sequence.tokens) < self._words
