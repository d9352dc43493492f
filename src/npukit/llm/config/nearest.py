"""Suggestions for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar of `words`, or None if none is similar enough.

    >>> nearest("learning_rte", ["epochs", "learning_rate"])
    'learning_rate'
    """
    lower = {word.lower(): word for word in words}
    matches = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[matches[0]] if matches else None


def nearest_file(path: Path) -> str:
    """Return ": did you mean X?" if a file in the same folder has a similar name, or an empty text."""
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    # A different number is a different model or data set, not a typo.
    near = nearest(path.name, [name for name in beside if _digits(name) == _digits(path.name)], cutoff=0.7)
    return f": did you mean {path.parent / near}?" if near else ""


def _digits(name: str) -> list[str]:
    return re.findall(r"\d", name)
