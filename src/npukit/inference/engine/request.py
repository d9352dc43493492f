"""The engine's requests and outputs: token ids and numbers only, nothing about text, chat or HTTP."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, Protocol

from npukit.errors import NpukitError
from npukit.inference.engine.prompt_media import PromptMedia

GREEDY = 1e-5  # a temperature below this is greedy: dividing by it would overflow
# `error` means that this one request could not be computed; Output.error says why.
FinishReason = Literal["stop", "length", "cancelled", "error"]


class Grammar(Protocol):
    """Restricts the next token of one answer, for example to a JSON schema; see npukit.inference.grammar."""

    def allowed(self) -> bytes:
        """A bit mask over the vocabulary, lowest bit first: which tokens may come next."""

    def accept(self, token: int) -> None:
        """Move on by a token that was chosen; raises NpukitError where the grammar cannot go on."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is sampled. The defaults are the model's own distribution; a temperature of 0 is greedy.

    >>> SamplingParams(temperature=0.7, top_p=0.9, max_tokens=256, seed=1)
    """

    max_tokens: int | None = None  # None: up to the engine's longest sequence
    min_tokens: int = 0  # an end token is not sampled before
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    end_tokens: frozenset[int] = frozenset()  # end the answer; they are in the output, and the caller hides them
    seed: int = 0  # the same request and seed give the same answer, whatever else is in the batch
    logprobs: int | None = None  # None: none; 0: of the chosen token; n: also of the n likeliest
    logprobs_after_temperature: bool = False  # otherwise they are the model's own

    @property
    def penalises(self) -> bool:
        """Whether tokens that occurred before are made less likely."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken instead of drawing one."""
        return self.temperature < GREEDY

    @property
    def changes_logits(self) -> bool:
        """Whether the model's logits are changed before a token is sampled."""
        return self.penalises or bool(self.logit_bias or self.min_tokens)

    def check(self, vocabulary: int) -> None:
        """Refuse numbers that the sampler cannot compute with; one bad row would fail the whole batch.

        >>> SamplingParams(top_k=2**63).check(vocabulary=32000)
        NpukitError: top_k must be a whole number from 0 to 2147483647.
        """
        for attribute in fields(self):
            value, highest = getattr(self, attribute.name), _LARGEST.get(attribute.name)
            if highest is not None and value is not None and not (isinstance(value, int) and 0 <= value <= highest):
                raise NpukitError(f"{attribute.name} must be a whole number from 0 to {highest}.")
            if attribute.type == "float" and not math.isfinite(value):
                raise NpukitError(f"{attribute.name} must be finite.")
        if self.temperature < 0 or self.repetition_penalty <= 0:
            raise NpukitError("temperature cannot be negative, and repetition_penalty must be positive.")
        if self.logprobs is not None and self.logprobs > vocabulary:
            raise NpukitError(f"logprobs can be {vocabulary} at most, the size of the vocabulary.")
        if any(not 0 <= token < vocabulary or not math.isfinite(bias) for token, bias in self.logit_bias.items()):
            raise NpukitError(f"logit_bias must give finite numbers for token ids from 0 to {vocabulary - 1}.")


_LARGEST = dict.fromkeys(("max_tokens", "min_tokens", "top_k", "logprobs"), 2**31 - 1) | {"seed": 2**63 - 1}


@dataclass(frozen=True)
class Request:
    """A prompt to be continued.

    >>> Request(prompt=(1, 15043), sampling=SamplingParams(temperature=0, max_tokens=16))
    """

    prompt: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    adapter: str | None = None  # the name of a LoRA adapter that the engine has
    prompt_logprobs: int | None = None  # as SamplingParams.logprobs, for the prompt's own tokens
    grammar: Grammar | None = None
    media: PromptMedia | None = None  # for models that take images


def check_request(request: Request, max_model_len: int, vocab_size: int, adapters: Container[str]) -> None:
    """Refuse a request that an engine with these limits and adapters cannot compute."""
    if not request.prompt:
        raise NpukitError("The prompt is empty: give at least one token.")
    if len(request.prompt) >= max_model_len:
        raise NpukitError(
            f"The prompt has {len(request.prompt)} tokens, and with its answer it may have {max_model_len}: "
            "shorten it, or start with a longer limit if the model allows it."
        )
    if not 0 <= min(request.prompt) <= max(request.prompt) < vocab_size:
        raise NpukitError(
            f"The prompt contains a token that the model does not have: ids go from 0 to {vocab_size - 1}."
        )
    request.sampling.check(vocab_size)
    if request.prompt_logprobs is not None and not 0 <= request.prompt_logprobs <= vocab_size:
        raise NpukitError(f"prompt_logprobs must be a number from 0 to {vocab_size}.")
    if request.adapter is not None and request.adapter not in adapters:
        raise NpukitError(f"There is no adapter {request.adapter}: load it first.")


class Token(NamedTuple):  # an engine makes some 100,000 a second, and a dataclass takes four times as long
    """A token and its log-probability before penalties and, unless the request says otherwise, temperature."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and their log-probabilities, likeliest first


class Output(NamedTuple):
    """What one step produced for one request, mostly one token; its last output has a `finish_reason`."""

    request_id: int
    token: Token | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[Token, ...] = ()  # only with the first token; the prompt's first token has no logprob
    error: Exception | None = None  # an NpukitError where the request is to blame


@dataclass(frozen=True)
class RequestOutput:
    """All outputs of a request together."""

    tokens: tuple[Token, ...]
    finish_reason: FinishReason
    prompt_logprobs: tuple[Token, ...] = ()
    error: Exception | None = None

    @property
    def ids(self) -> list[int]:
        """The generated token ids, an end token included."""
        return [token.id for token in self.tokens]


@dataclass(frozen=True)
class Stats:
    """Figures of an engine: of this moment (now), or since it was made."""

    running: int  # now
    waiting: int  # now
    blocks: int
    blocks_used: int  # now
    prompt_tokens: int
    cached_tokens: int  # tokens of prompts that were in the prefix cache
    generated_tokens: int
    draft_tokens: int  # proposed by speculative decoding
    accepted_tokens: int  # draft tokens that the model chose too
    preemptions: int
