"""Judge one pair of calls: do the outputs agree as closely as the inputs allow?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from npukit.precision.dump import Call, Value
from npukit.precision.result import Outcome
from npukit.precision.tolerance import OPTIMIZER_GROWTH, Allowance, allowance, ceiling, coherent, error, unit
from npukit.report.report import few

_DRAWS = ("rand", "normal", "bernoulli", "dropout", "multinomial", "exponential", "uniform", "poisson", "philox")
_PLACES = ("device", "pin_memory", "layout", "generator", "memory_format", "non_blocking", "dtype")
_IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable", "initial_lr")  # of optimizers
_DEFAULT = Value()
_SAME_SETTING = 1e-4  # computed settings, such as a clipping factor, carry rounding too


@dataclass(frozen=True)
class Judged:
    """The verdict on a pair of calls."""

    outcome: Outcome
    error: float | None = None
    allowed: Allowance | None = None
    settings: tuple[str, ...] = ()  # arguments that differ, as text
    dtypes: tuple[str, ...] = ()  # results whose dtype differs, as text
    worst: str = ""  # the output with the largest error
    bad_inputs: tuple[str, ...] = ()  # inputs that already differ
    nonfinite: str = ""
    noise: tuple[str, ...] = ()  # outputs that differ, but only by rounding noise
    computed_in: tuple[str, ...] = ()  # the dtypes of the first result on both sides, except in backward passes


Accepted = Callable[[Value, Value], bool]
Unused = Callable[[Call, str, Call], bool]


@dataclass(frozen=True)
class Known:
    """What is known about the two runs besides a pair of calls."""

    exact: bool = False
    """Whether results must agree bit for bit."""
    largest_gradient: float = 0.0
    gradients_differ: bool = False
    """Whether gradients differ at all, so that an optimizer's step is judged less strictly."""
    is_noise: Accepted = lambda left, right: False
    """Whether two tensors are known to consist of rounding noise, of whatever size."""
    is_unused: Unused = lambda left, place, right: False
    """Whether no call in either run reads an output, which then does not count as a result."""
    has_agreed: Accepted = lambda left, right: False
    """Whether inner calls that agreed produced two results of a module, which is then judged no more strictly."""


def judge(left: Call, right: Call, known: Known = Known()) -> Judged:
    """Compare two paired calls.

    >>> judge(call, call).outcome
    <Outcome.same: 'same'>
    """
    return _Pair(left, right, known).judged()


class _Pair:
    """Two paired calls, and how much their tensors differ."""

    def __init__(self, left: Call, right: Call, known: Known) -> None:
        self.left, self.right, self.known = left, right, known
        self.inputs = dict(errors(left.inputs, right.inputs))
        self.noise = {place for place in self.inputs if known.is_noise(left.inputs[place], right.inputs[place])}
        floats = (e for place, e in self.inputs.items() if left.inputs[place].is_float and place not in self.noise)
        self.inherited = max(filter(math.isfinite, floats), default=0.0)
        self.settings = tuple((optimizer_settings if left.kind == "optimizer" else _settings)(left, right))

    def judged(self) -> Judged:
        left, right, exact = self.left, self.right, self.known.exact
        dtypes, bad = tuple(_dtypes(left.outputs, right.outputs)), self._bad_inputs()
        allowed = allowance(left, right, self.inherited)
        for place, value in left.outputs.items():
            if _shape_differs(value, right.outputs.get(place)):
                return Judged(Outcome.differs, math.inf, allowed, self.settings, dtypes, place, bad)
        results = self._results()
        if not results:
            outcome = Outcome.differs if bad else Outcome.same if self.inputs and not left.outputs else Outcome.unknown
            return Judged(outcome, None, allowed, self.settings, dtypes, "", bad)
        allowances = {place: allowance(left, right, self.inherited, place) for place in results}
        excess = {place: self._excess(place, results[place], allowances[place]) for place in results}
        noise = tuple(place for place in results if excess[place] <= 1 and self._is_bad_output(place, results[place]))
        worst = max(excess, key=lambda place: excess[place])
        agree = excess[worst] <= 1
        if agree and bad and not exact and has_same_result(left, right):
            bad = ()
        if agree and left.kind == "module":  # a mask of a different dtype or shape that led to the same result
            bad = tuple(place for place in bad if math.isfinite(self.inputs[place]))
        computed_in = _computed_in(left, right)
        stated = self.settings if left.kind == "optimizer" else len(set(computed_in)) > 1
        outcome = Outcome.same if agree and not bad and not stated else Outcome.differs
        return Judged(
            outcome, results[worst], allowances[worst], self.settings, dtypes, worst, bad,
            _nonfinite(left.outputs[worst], right.outputs[worst]), () if exact else noise, computed_in,
        )  # fmt: skip

    def _bad_inputs(self) -> tuple[str, ...]:
        """Return the inputs that differ by more than rounding, or at all if results must be exact."""
        left, right = self.left.inputs, self.right.inputs
        return tuple(
            place
            for place, difference in self.inputs.items()
            if place not in self.noise
            and (difference > 0 if self.known.exact else _is_bad(left[place], right[place], difference))
        )

    def _results(self) -> dict[str, float]:
        """Return the errors of the outputs that count as results."""
        left, right, exact = self.left, self.right, self.known.exact
        if left.kind == "module" and left.phase == "backward" and not left.inputs and not exact:
            # No gradient comes in, as for tables of angles: the outputs were computed elsewhere and are judged there.
            return {}
        return {
            place: difference
            for place, difference in errors(left.outputs, right.outputs)
            # An index that changes because a value was rounded is not an error of its own.
            if (left.outputs[place].is_float or not any(self.inputs.values()))
            and (exact or not self.known.is_unused(left, place, right))
        }

    def _excess(self, place: str, difference: float, allowed: Allowance) -> float:
        """Return by what factor an output exceeds its allowed difference; 0 if the difference is accepted anyway."""
        known, kind = self.known, self.left.kind
        if known.exact:
            return math.inf if difference else 0.0
        one, other = self.left.outputs[place], self.right.outputs[place]
        excess = _excess(one, other, difference, allowed, bool(self.settings), known.largest_gradient, kind)
        if kind == "optimizer" and known.gradients_differ:
            excess /= OPTIMIZER_GROWTH
        if known.is_noise(one, other) or (excess > 1 and self._is_made_of_noise(place) and math.isfinite(difference)):
            return 0.0
        if excess > 1 and kind == "module" and known.has_agreed(one, other):
            return 1.0
        return excess

    def _is_made_of_noise(self, place: str) -> bool:
        """Return whether an operator computed the output from rounding noise."""
        shapes = {self.left.inputs[noise].shape for noise in self.noise}
        is_noisy = self.left.outputs[place].shape in shapes or f"0.{place}" in self.noise
        return self.left.kind == "op" and is_noisy

    def _is_bad_output(self, place: str, difference: float) -> bool:
        return _is_bad(self.left.outputs[place], self.right.outputs[place], difference)


def without_idle_weights(judged: Judged) -> Judged:
    """The verdict on a module's call, disregarding weights that differ but do not change what the module returns.

    Some gradients are pure rounding noise, such as those of the bias of attention keys. Adam scales them to full steps
    in either direction.
    """
    are_weights = all(place.startswith("parameters.") for place in judged.bad_inputs)
    is_idle = judged.error is not None and judged.allowed is not None and judged.error <= judged.allowed.own
    if not (judged.bad_inputs and are_weights and is_idle) or judged.settings or len(set(judged.computed_in)) > 1:
        return judged
    return replace(judged, outcome=Outcome.same, bad_inputs=())


def has_same_result(left: Call, right: Call) -> bool:
    """Whether an operator returned the same in both runs despite different inputs, like a reordered sum.

    A norm that is not finite, as of masked scores, hides every other difference.
    """
    outputs = list(errors(left.outputs, right.outputs))
    return (
        left.kind == "op"
        and bool(outputs)
        and all(
            left.outputs[place].is_float
            and math.isfinite(left.outputs[place].norm or 0.0)
            and difference <= allowance(left, right, 0.0, place).total
            for place, difference in outputs
        )
    )


def errors(left: Mapping[str, Value], right: Mapping[str, Value]) -> Iterator[tuple[str, float]]:
    """The error of every tensor that both sides have, if it can be determined."""
    for place, value in left.items():
        other = right.get(place)
        if value.is_tensor and other is not None and other.is_tensor:
            difference = error(value, other)
            if difference is not None:
                yield place, difference


def draws(call: Call) -> bool:
    """Whether an operator draws random numbers."""
    return call.kind == "op" and any(word in call.op for word in _DRAWS)


def _dtypes(left: Mapping[str, Value], right: Mapping[str, Value]) -> Iterator[str]:
    for place, value in left.items():
        other = right.get(place)
        is_alike = other is not None and value.is_tensor and value.is_float == other.is_float
        if other is not None and is_alike and value.dtype != other.dtype:
            yield f"{title_of('output', place)} is {value.dtype} on the left, {other.dtype} on the right"


def _computed_in(left: Call, right: Call) -> tuple[str, ...]:
    """The dtypes of the first result of two calls of the same operator or module, except in backward passes."""
    types = [call.outputs[place].dtype for call in (left, right) for place in list(call.outputs)[:1]]
    are_floats = all(value.is_float for call in (left, right) for value in list(call.outputs.values())[:1])
    alike = left.op == right.op and left.kind in ("op", "module") and left.phase in ("forward", "optimizer")
    return tuple(types) if alike and are_floats else ()


def _shape_differs(value: Value, other: Value | None) -> bool:
    return other is not None and value.is_tensor and other.is_tensor and value.shape != other.shape


def _is_bad(left: Value, right: Value, difference: float) -> bool:
    return difference > ceiling([left, right]) if left.is_float else difference > 0


def _excess(
    left: Value, right: Value, difference: float, allowed: Allowance, settings: bool, largest_gradient: float, kind: str
) -> float:
    """By what factor an output exceeds its allowed difference."""
    if not math.isfinite(difference):
        return math.inf
    if not difference:
        return 0.0
    if kind in ("gradients", "optimizer"):  # what they were computed from is not recorded
        scale = max(left.norm or 0.0, right.norm or 0.0)
        noise = max(1.0, 1e-3 * largest_gradient / scale) if scale else math.inf
        return difference / (ceiling([left, right]) * noise)
    total = min(allowed.total, 2 * unit([left])) if settings else allowed.total
    together = coherent(left, right)
    # Noise of this size changes a norm by its square, and by the part that elements share by chance.
    by_chance = difference * (difference + 8 / math.sqrt(left.count)) + 2 * unit([left, right]) + allowed.own
    explained = by_chance + 16 * allowed.inherited * min(1.0, allowed.inherited * 16 + 8 / math.sqrt(left.count))
    systematic = together / explained if left.count >= 256 and unit([left, right]) > 2**-20 else 0.0
    return max(difference / total, systematic)


def optimizer_settings(left: Call, right: Call) -> Iterator[str]:
    """Optimizer settings that differ, as text, with the parameters that they apply to."""
    names = [name for name in left.outputs if name in right.outputs]
    apart: dict[tuple[str, object, object], list[str]] = defaultdict(list)
    for setting in dict.fromkeys(place.partition(" of ")[0] for place in left.inputs):
        if setting.partition(".")[0] in _IMPLEMENTATION:
            continue
        for name in names:
            one, other = (call.inputs.get(f"{setting} of {name}", call.inputs.get(setting)) for call in (left, right))
            if one is not None and other is not None and not _same_setting(one, other):
                apart[setting, one.scalar, other.scalar].append(name)
    for (setting, value, other_value), members in apart.items():
        whose = "" if len(members) == len(names) else f" of {few(members)}"
        yield f"{setting}{whose} is {value} on the left, {other_value} on the right"


def _settings(left_call: Call, right_call: Call) -> Iterator[str]:
    """Arguments that differ, as text. An argument with its default value is not in a dump."""
    if left_call.op != right_call.op:
        return
    left, right = left_call.inputs, right_call.inputs
    for place in dict.fromkeys([*left, *right]):
        value, other = left.get(place, _DEFAULT), right.get(place, _DEFAULT)
        if not (value.is_tensor or other.is_tensor or place.split(".")[0] in _PLACES or _same_setting(value, other)):
            one, two = ("the default" if setting is _DEFAULT else setting.scalar for setting in (value, other))
            yield f"{title_of('argument', place)} is {one} on the left, {two} on the right"


def _same_setting(value: Value, other: Value) -> bool:
    one, two = value.scalar, other.scalar
    if isinstance(one, float | int) and isinstance(two, float | int):
        both_nan = one != one and two != two
        return both_nan or one == two or abs(one - two) <= _SAME_SETTING * max(abs(one), abs(two))
    return one == two or str(one).startswith(("cpu", "cuda", "npu"))


def title_of(word: str, place: str) -> str:
    """Return the name of an input or output for a sentence. One that only has a number is called by `word`.

    >>> title_of("output", "0"), title_of("output", "parameters.weight")
    ('output 0', 'parameters.weight')
    """
    return f"{word} {place}" if place[:1].isdigit() else place


def _nonfinite(left: Value, right: Value) -> str:
    counts = [(value.nan or 0, value.inf or 0) for value in (left, right)]
    if counts[0] == counts[1]:
        return ""
    return " and ".join(
        f"{nan:,} NaN and {inf:,} Inf on the {side}" for side, (nan, inf) in zip(("left", "right"), counts, strict=True)
    )
