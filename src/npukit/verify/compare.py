"""Compares the figures of two runs one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from npukit.verify.figure import Figure, changes, difference, has_numbers
from npukit.verify.result import Compared, FirstDifference, Kind

Figures = Mapping[tuple[Kind, str], Sequence[Figure]]
_KINDS: tuple[Kind, ...] = ("settings", "loss", "backward", "outputs", "gradients", "weights")
_SMALL = 1e-3  # of the largest value of a series: smaller values are compared as if they were that large
_MAX_GRADIENT = 0.1  # the largest tolerance of gradients
_MAX_LOSS = 2e-3  # the largest tolerance of losses: the rounding of a bfloat16 number
_FLOAT32 = 1e-6  # larger roundings are those of half precision


@dataclass(frozen=True)
class Tolerance:
    """How much figures may differ: `loss` for losses, None for 1e-4, or what half precision makes of it.

    Devices that compute in half precision round in different places, which shows in gradients more than in losses.
    """

    loss: float | None = None
    default: float = 1e-4

    def of(self, kind: Kind, rounding: float) -> float:
        """
        >>> Tolerance().of("loss", 0.0), Tolerance().of("gradients", 0.0), Tolerance().of("loss", 2**-7)
        (0.0001, 0.001, 0.002)
        """
        if kind == "settings":
            return _FLOAT32
        half = rounding if rounding > _FLOAT32 else 0.0
        if kind in ("loss", "backward"):
            return self.loss if self.loss is not None else max(self.default, min(half / 2, _MAX_LOSS))
        allowed = self.default if self.loss is None else self.loss
        return max(allowed, 8 * half) if kind == "outputs" else max(10 * allowed, min(32 * half, _MAX_GRADIENT))


def worth_comparing(figures: Figures) -> dict[tuple[Kind, str], Sequence[Figure]]:
    """The figures without printed ones that are not losses, and without those that are always NaN."""
    return {
        (kind, name): series
        for (kind, name), series in figures.items()
        if has_numbers(series) and (kind != "loss" or changes(series))
    }


def compare(
    before: Figures, after: Figures, tolerance: Tolerance
) -> tuple[tuple[Compared, ...], FirstDifference | None]:
    """Compare figures from `worth_comparing`; returns what was compared and the first difference.

    >>> compare({("loss", "loss"): [Figure("loss", 1.0)]}, {("loss", "loss"): [Figure("loss", 2.0)]}, Tolerance())
    """
    rounding = max((figure.rounding for series in before.values() for figure in series), default=0.0)
    pairs = list(_pairs(before, after, tolerance, rounding))
    compared = tuple(compared for compared, _ in pairs if compared.count)
    divergences = [difference for _, difference in pairs if difference]
    first = min(divergences, key=lambda divergence: (divergence.number, _KINDS.index(divergence.kind)), default=None)
    return compared, first


def _pairs(
    before: Figures, after: Figures, tolerance: Tolerance, rounding: float
) -> Iterator[tuple[Compared, FirstDifference | None]]:
    for kind in _KINDS:
        for (_, name), ours in ((key, series) for key, series in before.items() if key[0] == kind):
            theirs = after.get((kind, name), ())
            if kind == "settings" and not theirs:
                continue  # another optimizer class may have other settings
            allowed = tolerance.of(kind, rounding)
            least = _SMALL * max(abs(figure.value) for figure in ours)
            differences = [difference(one, other, least) for one, other in zip(ours, theirs, strict=False)]
            largest = max(differences, default=0.0)
            compared = Compared(kind, name, len(differences), ours[0].value, ours[-1].value, largest, allowed)
            yield compared, _first_divergence(kind, name, ours, theirs, allowed, least)


def _first_divergence(
    kind: Kind, name: str, ours: Sequence[Figure], theirs: Sequence[Figure], allowed: float, least: float
) -> FirstDifference | None:
    for number, (one, other) in enumerate(zip_longest(ours, theirs), 1):
        if one is None or other is None or difference(one, other, least) > allowed:
            step = next((figure.step for figure in (one, other) if figure and figure.step is not None), None)
            values = (one.value if one else None, other.value if other else None)
            texts = (one.text if one else "", other.text if other else "")
            return FirstDifference(kind, name, number, step, *values, *texts)
    return None
