"""Find the known errors that share most words with an unknown message: a hint where to look, not an answer."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from dataclasses import dataclass

from npukit.facts.errors import KnownError, known_errors

WORD = re.compile(r"[A-Za-z_]{3,}|[\u4e00-\u9fff]{2}")
LEAST = 0.3  # share of the words' weight below which the overlap is meaningless
FEWEST_WORDS = 3  # words of a message, not counting the exception's class
CLASS = re.compile(r"\b[\w.]*(?:Error|Exception)\b")


@dataclass(frozen=True)
class Neighbour:
    """A known error, and how much of a message it shares, from 0 to 1."""

    code: str
    meaning: str
    likeness: float


def nearest(message: str, count: int = 3) -> list[Neighbour]:
    """The known errors nearest to a message, the nearest first. Rare words count more than common ones.

    >>> nearest("RuntimeError: HCCL watchdog thread was ended")[0].code
    'watchdog-ended'
    """
    weights, documents = _vocabulary()
    words = _words(CLASS.sub("", message))
    if len(words) < FEWEST_WORDS:
        return []
    unknown = max(weights.values())
    whole = sum(weights.get(word, unknown) for word in words)
    likeness = ((sum(weights[word] for word in words & known) / whole, error) for error, known in documents)
    best = sorted((pair for pair in likeness if pair[0] >= LEAST), key=lambda pair: (-pair[0], pair[1].code))
    return [Neighbour(error.code, error.meaning, round(share, 2)) for share, error in best[:count]]


@functools.cache
def _vocabulary() -> tuple[dict[str, float], list[tuple[KnownError, frozenset[str]]]]:
    """The weight of each word, and the words of each known error."""
    documents = [(error, _words(f"{error.example} {error.meaning}")) for error in known_errors().values()]
    counts = Counter(word for _, words in documents for word in words)
    return {word: math.log(len(documents) / count) for word, count in counts.items()}, documents


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in WORD.findall(text))
