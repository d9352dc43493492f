"""Sets of stretches of time: sorted, disjoint lists of (start, end)."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[int, int]]


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """The time that any of them covers.

    >>> union([(0, 2), (1, 3), (5, 6)])
    [(0, 3), (5, 6)]
    """
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        elif end > start:
            joined.append((start, end))
    return joined


def overlap(first: Spans, second: Spans) -> Spans:
    """The time that both cover.

    >>> overlap([(0, 5)], [(1, 2), (4, 9)])
    [(1, 2), (4, 5)]
    """
    remaining: Spans = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            remaining.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return remaining


def minus(first: Spans, second: Spans) -> Spans:
    """The time that the first covers and the second does not.

    >>> minus([(0, 5)], [(1, 2)])
    [(0, 1), (2, 5)]
    """
    common: Spans = []
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            if second[k][0] > start:
                common.append((start, second[k][0]))
            start = max(start, second[k][1])
            k += 1
        if start < end:
            common.append((start, end))
    return common


def length(spans: Iterable[tuple[int, int]]) -> int:
    """How long they are together.

    >>> length([(0, 2), (5, 6)])
    3
    """
    return sum(end - start for start, end in spans)
