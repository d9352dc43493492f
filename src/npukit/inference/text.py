"""Streams tokens as text: never half a character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

BROKEN = "\ufffd"  # stands for bytes that are not a complete character
QUICK = 2**16  # characters
LONGEST = 32  # tokens that are decoded together; bytes that never become text must not accumulate


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """A function from ids to text that leaves spaces as they are."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return lambda ids: str(backend.decode(ids, skip_special_tokens=False))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def max_characters(tokenizer: Any, tokens: int) -> int:
    """The longest text that so many tokens can have: a longer one can be refused without tokenising it.

    At least `QUICK`, because some tokenizers have one token for many blanks.
    """
    return max(QUICK, tokens * max(map(len, tokenizer.get_vocab())))


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids of special tokens, which are not part of the text."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


class TextStream:
    """Turns the tokens of one answer into pieces of text that can be shown.

    >>> stream = TextStream(tokenizer, stops=["\\n\\n"])
    >>> text = "".join(stream.add(token) for token in tokens) + stream.end()
    >>> stream.stopped  # the stop string that ended the answer; it and what follows are not in the text
    """

    def __init__(
        self,
        tokenizer: Any,
        stops: Sequence[str] = (),
        keep_stop: bool = False,
        hidden: Collection[int] | None = None,  # tokens that are not shown; by default the special ones
    ) -> None:
        self.stopped: str | None = None
        self._decode = decoder(tokenizer)
        self._hidden = special_ids(tokenizer) if hidden is None else hidden
        self._stops = tuple(stop for stop in stops if stop)
        self._keep_stop = keep_stop
        self._ids: list[int] = []  # decoded together, because a token's text can depend on the one before
        self._before = 0  # how many of them made complete text
        self._given = 0  # characters of their text that were returned
        self._held = ""  # may be the beginning of a stop string

    def add(self, token: int) -> str:
        """The text that this token completes; sometimes none."""
        if self.stopped is not None or token in self._hidden:
            return ""
        self._ids.append(token)
        text = self._decode(self._ids)
        whole = text[:-3] + text[-3:].rstrip(BROKEN)  # a character has four bytes at most
        piece, self._given = whole[self._given :], max(self._given, len(whole))
        if whole == text or len(self._ids) > LONGEST:
            del self._ids[: self._before or max(0, len(self._ids) - 8)]
            self._before = len(self._ids)
            self._given = len(self._decode(self._ids)) - (len(text) - len(whole))
        return self._without_stop(piece)

    def end(self) -> str:
        """The rest of the text, which was held back."""
        if self.stopped is not None:
            return ""
        piece = self._without_stop(self._decode(self._ids)[self._given :])
        return piece if self.stopped is not None else piece + self._held

    def _without_stop(self, piece: str) -> str:
        text = self._held + piece
        first = min(((text.find(stop), -len(stop)) for stop in self._stops if stop in text), default=None)
        if first:
            at, length = first[0], -first[1]
            self.stopped, self._held = text[at : at + length], ""
            return text[: at + length] if self._keep_stop else text[:at]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may be the beginning of the stop string."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
