"""A request on its way through the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.inference.engine.prompt_media import Picture
from npukit.inference.engine.request import FinishReason, Request, Token


@dataclass(eq=False)
class Sequence:
    """The tokens of a request, and how many of them are computed.

    The device may be a token ahead of the host: `num_computed_tokens` counts the tokens whose keys and values are in
    the cache, or will be when all launched steps have run.
    """

    request_id: int
    request: Request
    tokens: list[int]  # the prompt, then the generated tokens that have reached the host
    max_len: int  # of the prompt and the answer together
    cache_salt: bytes = b""  # hashed before its tokens: blocks are shared only with sequences that have the same
    num_prefill_tokens: int = 0  # computed before the first token is sampled
    num_computed_tokens: int = 0
    row: int = -1  # of the batch; -1 while it waits
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of its first blocks, as far as they were needed
    num_cached_blocks: int = 0  # registered in the pool under these hashes
    finish_reason: FinishReason | None = None
    error: Exception | None = None  # ends the sequence with the results of the next step
    prompt_logprobs: list[Token] = field(default_factory=list)  # filled only if the request asks for them
    num_in_flight: int = 0  # launched steps whose results have not arrived
    state: object = None  # of the runner
    occurrences: Any = None  # of its tokens, for the sampler's penalties
    draft_tokens: tuple[int, ...] = ()  # computed together with the newest token, in case they come next
    features: dict[Picture, Any] = field(default_factory=dict)  # of pictures that are partly computed
    groups: npt.NDArray[np.int64] | None = None  # which tokens of the prompt see each other, see `Vision.groups`

    # Derived from the request once, because every token asks for them.
    is_plain: bool = field(init=False)  # the likeliest token is all that the request needs
    changes_logits: bool = field(init=False)  # before a token is sampled
    waits_for_tokens: bool = field(init=False)  # sampling a token needs the one before it on the host

    def __post_init__(self) -> None:
        sampling, has_grammar = self.request.sampling, self.request.grammar is not None
        self.waits_for_tokens = has_grammar or sampling.penalises
        self.changes_logits = has_grammar or sampling.changes_logits
        self.is_plain = sampling.is_greedy and sampling.logprobs is None and not self.changes_logits

    @contextlib.contextmanager
    def errors_kept(self) -> Iterator[None]:
        """An error in this sequence ends it alone, not the whole batch."""
        try:
            yield
        except Exception as error:
            self.error = self.error or error

    @property
    def decode_lengths(self) -> range:
        """The sequence's length at each token of a decoding step: the newest one, then the draft tokens."""
        return range(self.num_computed_tokens - len(self.draft_tokens), self.num_computed_tokens + 1)

    def accept(self, tokens: list[Token]) -> list[Token]:
        """Accept the draft tokens that the model chose too; returns them and the token after them."""
        if not self.draft_tokens:
            return tokens
        right = next((n for n, token in enumerate(self.draft_tokens) if tokens[n].id != token), len(self.draft_tokens))
        self.num_computed_tokens -= len(self.draft_tokens) - right
        self.draft_tokens = ()
        return tokens[: right + 1]

    @property
    def offset(self) -> int:
        """What is added to a generated token's index for its position."""
        return self.request.media.offset if self.request.media is not None else 0

    @property
    def has_axes(self) -> bool:
        """Whether its tokens have several positions, as in time, height and width."""
        return self.request.media is not None and self.request.media.positions is not None

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The positions [axes, tokens] of the tokens from `start` to `stop`; those of text alone have one axis."""
        media = self.request.media
        places = np.arange(start, stop) + self.offset
        if media is None or media.positions is None:
            return places[None]
        own = media.positions[:, start:stop]
        after = places[own.shape[1] :]
        return np.concatenate([own, np.broadcast_to(after, (len(own), len(after)))], axis=1)

    @property
    def needs_own_pass(self) -> bool:
        """Whether its prompt cannot share a pass with decoding: all its hidden states are needed, or images follow."""
        media, groups = self.request.media, self.groups
        has_pictures = media is not None and self.num_computed_tokens < media.stop
        sees_ahead = groups is not None and bool((groups[self.num_computed_tokens :] >= 0).any())
        return self.request.prompt_logprobs is not None or has_pictures or sees_ahead

    def end_of_chunk(self, stop: int) -> int:
        """Where a chunk ends that should end at `stop`: tokens that see each other are computed together."""
        groups = self.groups
        if groups is None or stop >= len(groups) or groups[stop] < 0 or groups[stop - 1] != groups[stop]:
            return stop
        others = np.flatnonzero(groups != groups[stop])
        start = int(others[others < stop].max(initial=-1)) + 1
        return start if start > self.num_computed_tokens else int(others[others > stop].min(initial=len(groups)))

    @property
    def num_pending_tokens(self) -> int:
        """How many tokens have to be computed before the next one is sampled."""
        return (self.num_prefill_tokens or len(self.tokens)) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether some of its prompt is not computed yet."""
        return self.num_computed_tokens < self.num_prefill_tokens
