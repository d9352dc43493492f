"""A figure that a run printed or that was observed in it, and the difference of two figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A loss as it was printed, or a few numbers that stand for tensors."""

    name: str
    value: float  # of tensors: their length as one vector
    step: int | None = None
    text: str = ""
    direction: float | None = None  # of tensors: their projection on a fixed direction
    rounding: float = 0.0  # the relative spacing of the least precise numbers in its computation


def by_name(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """The figures of each name, in their order."""
    series: dict[str, list[Figure]] = defaultdict(list)
    for figure in figures:
        series[figure.name].append(figure)
    return dict(series)


def difference(one: Figure, other: Figure, least: float = 0.0) -> float:
    """The difference of two figures relative to the larger one, or to `least`; two NaNs are equal."""
    size = max(abs(one.value), abs(other.value), least)
    apart = _apart(one.value, other.value)
    if one.direction is not None and other.direction is not None:
        apart = max(apart, _apart(one.direction, other.direction))
    return apart / size if apart else 0.0


def _apart(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) if math.isfinite(one) and math.isfinite(other) else math.inf


def has_numbers(series: Iterable[Figure]) -> bool:
    """Whether any of them is a number."""
    return any(not math.isnan(figure.value) for figure in series)


def changes(series: Iterable[Figure]) -> bool:
    """Whether a series may be a loss: one that never changes is a setting. A single figure may be a loss."""
    values = [figure.value for figure in series]
    return len(values) == 1 or len(set(values)) > 1
