"""What an engine is asked for and what it answers: token ids and numbers only, nothing of text, chat or HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

# `error` means that this one request could not be computed; the sentence is in Output.error.
Finish = Literal["stop", "length", "cancelled", "error"]


class Grammar(Protocol):
    """What restricts the next token of one answer, for example a JSON schema; see npukit.inference.grammar."""

    def allowed(self) -> bytes:
        """A bit mask over the vocabulary, lowest bit first: which tokens may come next."""

    def accept(self, token: int) -> None:
        """Move on by a token that was chosen."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults are the model's own distribution; a temperature of 0 is greedy.

    >>> Sampling(temperature=0.7, top_p=0.9, max_tokens=256, seed=1)
    """

    max_tokens: int | None = None  # None: up to the engine's longest sequence
    min_tokens: int = 0  # no end token before
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    end_tokens: frozenset[int] = frozenset()  # end the answer; they are reported, and it is the caller who hides them
    seed: int = 0  # the same request and seed give the same answer, whatever else is in the batch
    logprobs: int | None = None  # None: none; 0: of the chosen token; n: also of the n likeliest

    @property
    def penalises(self) -> bool:
        """Whether tokens that occurred before are made less likely."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest token is all that is asked for."""
        changed = self.penalises or bool(self.logit_bias or self.min_tokens)
        return self.temperature == 0 and not changed and self.logprobs is None


@dataclass(frozen=True)
class Request:
    """A prompt to be continued.

    >>> Request(prompt=(1, 15043), sampling=Sampling(temperature=0, max_tokens=16))
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    adapter: str | None = None  # the name of a LoRA adapter that the engine has
    prompt_logprobs: int | None = None  # as Sampling.logprobs, for the prompt's own tokens
    grammar: Grammar | None = None


class Token(NamedTuple):  # some hundred thousand are made in a second: a dataclass takes four times as long
    """A token with the logarithm of its probability, as the model gave it, before any penalty or temperature."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and their log-probabilities, likeliest first


class Output(NamedTuple):
    """What one step gave to one request: mostly one token; the last output of a request has `finish`."""

    number: int
    token: Token | None = None
    finish: Finish | None = None
    prompt: tuple[Token, ...] = ()  # with prompt_logprobs: once, with the first token; the first one has no logprob
    error: str = ""


@dataclass(frozen=True)
class Answer:
    """All that came of a request."""

    tokens: tuple[Token, ...]
    finish: Finish
    prompt: tuple[Token, ...] = ()
    error: str = ""

    @property
    def ids(self) -> list[int]:
        """The generated token ids, an end token included."""
        return [token.id for token in self.tokens]


@dataclass(frozen=True)
class Stats:
    """Figures of an engine, since it was made unless they are of this moment."""

    running: int  # now
    waiting: int  # now
    blocks: int
    blocks_used: int  # now
    prompt_tokens: int
    reused_tokens: int  # of the prompts, taken from the cache
    generated_tokens: int
    guessed_tokens: int  # by prompt lookup
    confirmed_tokens: int  # of those, what the model chose too
    preemptions: int
