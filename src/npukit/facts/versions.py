"""Compare version strings in the forms that CANN, torch_npu and drivers use."""

from __future__ import annotations

import re

BEFORE_RELEASE = {"alpha": -4000, "beta": -3000, "rc": -2000, "t": -1000}


def key(version: str) -> tuple[int, ...]:
    """A sort key for versions, in which release candidates precede their release.

    >>> key("8.3.RC1") < key("8.3.0") < key("8.5.0")
    True
    """
    numbers: list[int] = []
    for word, number in re.findall(r"([A-Za-z]*)(\d+)", version.split("+")[0]):
        numbers.append(BEFORE_RELEASE.get(word.lower(), 0) + int(number))
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def same(one: str, other: str) -> bool:
    """Whether two versions are the same release, whatever their local parts (+cpu) are."""
    return key(one) == key(other)


def within(version: str, limits: str) -> bool | None:
    """Whether a version lies in limits such as `[7.0.0,7.7.99]` or `>=23.0`; None where they cannot be read."""
    if match := re.fullmatch(r"\s*([\[(])\s*([\w.]*)\s*,\s*([\w.]*)\s*([\])])\s*", limits):
        opening, low, high, closing = match.groups()
        above = not low or (key(version) >= key(low) if opening == "[" else key(version) > key(low))
        below = not high or (key(version) <= key(high) if closing == "]" else key(version) < key(high))
        return above and below
    if match := re.fullmatch(r"\s*>=\s*([\w.]+)\s*", limits):
        return key(version) >= key(match[1])
    return None
