"""Stretches of time: what covers what."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[int, int]]


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """The same time without overlaps, in order.

    >>> union([(3, 5), (1, 4), (7, 8)])
    [(1, 5), (7, 8)]
    """
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def minus(spans: Spans, taken: Spans) -> Spans:
    """What of `spans` lies outside of `taken`; both are unions.

    >>> minus([(1, 5), (7, 8)], [(2, 3)])
    [(1, 2), (3, 5), (7, 8)]
    """
    left: Spans = []
    for start, end in spans:
        for taken_start, taken_end in taken:
            if taken_end <= start or taken_start >= end:
                continue
            if taken_start > start:
                left.append((start, taken_start))
            start = max(start, taken_end)
        if start < end:
            left.append((start, end))
    return left
