"""Guess the next tokens of an answer from what stands in its prompt and in itself (prompt lookup).

Summaries, edited code and quotations repeat long pieces of their prompt. Where the last tokens occurred before, what
followed them there is computed in the same pass as the next token; as much of it as the model would have chosen anyway
is kept, so that one pass gives several tokens and every answer stays what it was.
"""

from __future__ import annotations

from collections.abc import Sequence

_ALIKE = 3  # so many tokens have to be the same before what follows is worth a guess


class Lookup:
    """Where each run of tokens of one sequence last occurred.

    >>> Lookup().guess([7, 1, 2, 3, 4, 5, 1, 2, 3], most=2)
    (4, 5)
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # the place behind a run of tokens
        self._known = _ALIKE

    def guess(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """What may follow these tokens, which are those of the last call and maybe more."""
        for place in range(self._known, len(tokens)):
            self._after[tuple(tokens[place - _ALIKE : place])] = place
        self._known = max(_ALIKE, len(tokens))
        start = self._after.get(tuple(tokens[-_ALIKE:]))
        return () if start is None else tuple(tokens[start : start + max(0, most)])
