"""Find losses in what a program printed, and the first that differs between two programs."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:nan|inf)\b"
_LOSS = re.compile(
    rf"(?:\b(?P<of>[a-z]+)[ _/])?(?P<name>\b[\w/]*loss(?:_\w+)?)\b[\"']?\s*[:=(|]?\s*(?P<value>{_NUMBER})",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?<![\w/])(?:global_)?(?:step|iter|iteration|batch)\b[\"']?\W{0,4}(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Loss:
    """A loss as it was printed."""

    name: str
    value: float
    step: int | None
    text: str


def losses_in(lines: Iterable[str]) -> Iterator[Loss]:
    """
    >>> [(loss.name, loss.value, loss.step) for loss in losses_in(["step 3: train loss 2.5, val loss 2.75"])]
    [('train loss', 2.5, 3), ('val loss', 2.75, 3)]
    """
    for line in lines:
        text = line.strip()
        if "\r" in line.rstrip() or "loss" not in text.lower():  # a progress bar's losses depend on the time
            continue
        if text.startswith("{") and (record := _json(text)) is not None:
            yield from _losses_of(record, text)
            continue
        step = _STEP.search(text)
        for match in _LOSS.finditer(text):
            name = " ".join(filter(None, (match["of"], match["name"]))).lower()
            yield Loss(name, float(match["value"]), int(step[1]) if step else None, text)


def _json(text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _losses_of(record: Mapping[str, Any], text: str) -> Iterator[Loss]:
    step = next((record[key] for key in ("step", "global_step", "iter", "iteration") if key in record), None)
    for name, value in record.items():
        if name.lower().endswith("loss") and isinstance(value, (int, float)):
            yield Loss(name.lower(), float(value), int(step) if isinstance(step, (int, float)) else None, text)


def by_name(losses: Iterable[Loss]) -> dict[str, list[Loss]]:
    """The losses of each name, in their order."""
    series: dict[str, list[Loss]] = defaultdict(list)
    for loss in losses:
        series[loss.name].append(loss)
    return dict(series)


def difference(one: float, other: float) -> float:
    """How far apart two losses are, relative to the larger one; two NaNs are the same."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def first_difference(
    before: Sequence[Loss], after: Sequence[Loss], tolerance: float
) -> tuple[int, Loss | None, Loss | None] | None:
    """The number (from 1) of the first loss that differs or is missing, and both of them."""
    for number, (one, other) in enumerate(zip_longest(before, after), 1):
        if one is None or other is None or difference(one.value, other.value) > tolerance:
            return number, one, other
    return None
