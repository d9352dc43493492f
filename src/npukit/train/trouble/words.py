"""Long lists in short."""

from __future__ import annotations

from collections.abc import Sequence


def few(items: Sequence[object], most: int = 3) -> str:
    """The first of many.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(map(str, items[:most])) + more
