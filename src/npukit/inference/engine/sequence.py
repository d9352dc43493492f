"""A request while it is being answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from npukit.inference.engine.lookup import Lookup
from npukit.inference.engine.multimodal import Picture
from npukit.inference.engine.request import Finish, Request, Token


@dataclass(eq=False)
class Sequence:
    """The tokens of a request, and how far the device is with them.

    The device may be a token ahead of what is known here: `cached` counts tokens whose keys and values are in the
    cache or will be once all that was launched has run.
    """

    number: int
    request: Request
    tokens: list[int]  # the prompt, then what was generated and has arrived
    limit: int  # how many tokens it may have in all
    root: bytes = b""  # what the keys of its blocks begin with
    goal: int = 0  # so many tokens are computed before the first one is generated
    cached: int = 0
    row: int = -1
    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)  # the names of its blocks as far as they were needed
    remembered: int = 0  # so many of its blocks are known to the pool by these names
    finish: Finish | None = None
    error: Exception | None = None  # what made it impossible to go on; it ends with the next step's results
    prompt: list[Token] = field(default_factory=list)  # with their probabilities, where they were asked for
    launches: int = 0  # steps that were launched for it and have not come back
    state: object = None  # what a runner keeps for it
    guess: tuple[int, ...] = ()  # tokens that are computed along with the newest one, in case they come next
    lookup: Lookup = field(default_factory=Lookup)
    features: dict[Picture, Any] = field(default_factory=dict)  # of pictures that are partly computed
    groups: npt.NDArray[np.int64] | None = None  # which tokens of the prompt see each other, see `Vision.groups`

    # What is asked for each token of each sequence is worked out once.
    is_plain: bool = field(init=False)  # the likeliest token is all that is asked for
    changes_logits: bool = field(init=False)  # before a token is drawn
    waits_for_tokens: bool = field(init=False)  # the choice of a token depends on the one before being known here

    def __post_init__(self) -> None:
        sampling, has_grammar = self.request.sampling, self.request.grammar is not None
        self.waits_for_tokens = has_grammar or sampling.penalises
        self.changes_logits = has_grammar or sampling.changes_logits
        self.is_plain = sampling.is_greedy and sampling.logprobs is None and not self.changes_logits

    @contextlib.contextmanager
    def errors_kept(self) -> Iterator[None]:
        """Let what fails for this sequence end it alone, and not the batch that it is in."""
        try:
            yield
        except Exception as error:
            self.error = self.error or error

    @property
    def decoded(self) -> range:
        """The lengths of the sequence up to each token of a decoding step: the newest, and what is guessed after it."""
        return range(self.cached - len(self.guess), self.cached + 1)

    def confirm(self, tokens: list[Token]) -> list[Token]:
        """Of the tokens chosen after the newest and after each guess, those whose guesses were right."""
        right = next((n for n, token in enumerate(self.guess) if tokens[n].id != token), len(self.guess))
        self.cached -= len(self.guess) - right
        self.guess = ()
        return tokens[: right + 1]

    @property
    def offset(self) -> int:
        """How far the position of a generated token is from its place."""
        return self.request.multimodal.offset if self.request.multimodal is not None else 0

    @property
    def has_axes(self) -> bool:
        """Whether its tokens have positions in time, height and width."""
        return self.request.multimodal is not None and self.request.multimodal.positions is not None

    def positions(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The positions [3, tokens] of the tokens between two places."""
        media = self.request.multimodal
        places = np.arange(start, stop) + self.offset
        made = np.broadcast_to(places, (3, stop - start))
        if media is None or media.positions is None:
            return made
        own = media.positions[:, start:stop]
        return np.concatenate([own, made[:, own.shape[1] :]], axis=1)

    @property
    def needs_own_pass(self) -> bool:
        """Whether its prompt cannot go along with tokens that are decoded: all its hidden states are asked for, or
        pictures are to come.
        """
        media, groups = self.request.multimodal, self.groups
        has_pictures = media is not None and self.cached < media.stop
        sees_ahead = groups is not None and bool((groups[self.cached :] >= 0).any())
        return self.request.prompt_logprobs is not None or has_pictures or sees_ahead

    def end_of_chunk(self, stop: int) -> int:
        """Where a chunk of tokens that should stop here does: tokens that see each other are computed together."""
        groups = self.groups
        if groups is None or stop >= len(groups) or groups[stop] < 0 or groups[stop - 1] != groups[stop]:
            return stop
        others = np.flatnonzero(groups != groups[stop])
        start = int(others[others < stop].max(initial=-1)) + 1
        return start if start > self.cached else int(others[others > stop].min(initial=len(groups)))

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens that are known have still to be computed."""
        return self.cached < self.goal
