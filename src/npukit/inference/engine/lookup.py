"""Prompt lookup: draft tokens from the prompt and the answer so far.

Summaries, edited code and quotations repeat long parts of their prompt. If the last tokens occurred before, what
followed them there is likely to follow again.
"""

from __future__ import annotations

from collections.abc import Sequence

_MATCH = 3  # tokens that must be the same


class Lookup:
    """Where each run of tokens last occurred in one sequence.

    >>> Lookup().draft([7, 1, 2, 3, 4, 5, 1, 2, 3], limit=2)
    (4, 5)
    """

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # the index after each run of tokens
        self._known = _MATCH

    def draft(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens that may follow these, which must continue those of the last call."""
        for place in range(self._known, len(tokens)):
            self._after[tuple(tokens[place - _MATCH : place])] = place
        self._known = max(_MATCH, len(tokens))
        start = self._after.get(tuple(tokens[-_MATCH:]))
        return () if start is None else tuple(tokens[start : start + max(0, limit)])
