"""Speculative decoding: draft the next tokens of answers, so that one pass of the model gives several.

Draft tokens are computed in the same pass as the next token, and those that the model would have chosen anyway are
accepted. Answers stay the same; drafts only decide how many passes they take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from npukit.inference.engine.request import Request, RequestOutput, SamplingParams
from npukit.inference.engine.sequence import Sequence

NGRAM = 3  # tokens that must be the same before those after them are a draft


class Proposer(Protocol):
    """Drafts tokens."""

    num_speculative_tokens: int  # at most, for each answer

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[tuple[int, ...]]:
        """Tokens that may follow each of these sequences, up to its limit."""


class PromptLookup:
    """Drafts what followed the same tokens earlier in the prompt or the answer.

    Summaries, edited code and quotations repeat long parts of their prompt.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._indexes: WeakKeyDictionary[Sequence, NgramIndex] = WeakKeyDictionary()

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[tuple[int, ...]]:
        indexes = (self._indexes.setdefault(sequence, NgramIndex()) for sequence in sequences)
        return [
            index.draft(sequence.tokens, limit)
            for index, sequence, limit in zip(indexes, sequences, limits, strict=True)
        ]


class NgramIndex:
    """Where each run of tokens last occurred in one sequence.

    >>> NgramIndex().draft([7, 1, 2, 3, 4, 5, 1, 2, 3], limit=2)
    (4, 5)
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # the index after each run of tokens
        self._known = NGRAM

    def draft(self, tokens: list[int], limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that may follow these, which must continue those of the last call."""
        for place in range(self._known, len(tokens)):
            self._after[tuple(tokens[place - NGRAM : place])] = place
        self._known = max(NGRAM, len(tokens))
        start = self._after.get(tuple(tokens[-NGRAM:]))
        return () if start is None else tuple(tokens[start : start + max(0, limit)])


class DraftModel:
    """Drafts what a smaller model with the same tokenizer would say, for all sequences at once.

    It is an engine of its own, whose prefix cache keeps the sequences that it has read. It gets neither images nor
    adapters; without them its drafts are accepted less often. `vocab_size` counts the tokens that both models have.
    """

    def __init__(
        self,
        generate: Callable[[Iterable[Request]], list[RequestOutput]],
        max_model_len: int,
        vocab_size: int,
        num_speculative_tokens: int,
    ) -> None:
        self._generate, self._max_model_len, self._vocab_size = generate, max_model_len, vocab_size
        self.num_speculative_tokens = num_speculative_tokens

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[tuple[int, ...]]:
        requests = {
            index: Request(tuple(sequence.tokens), SamplingParams(temperature=0, max_tokens=limit))
            for index, (sequence, limit) in enumerate(zip(sequences, limits, strict=True))
            if self._can_read(sequence, limit)
        }
        drafts: list[tuple[int, ...]] = [()] * len(sequences)
        for index, output in zip(requests, self._generate(requests.values()), strict=True):
            drafts[index] = tuple(itertools.takewhile(lambda token: token < self._vocab_size, output.ids))
        return drafts

    def _can_read(self, sequence: Sequence, limit: int) -> bool:
        if limit <= 0 or sequence.request.media is not None or len(sequence.tokens) + limit > self._max_model_len:
            return False
        return max(sequence.tokens) < self._vocab_size
