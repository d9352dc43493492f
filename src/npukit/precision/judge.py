"""One pair of calls: whether the outputs agree as well as the inputs let expect."""

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
_SAME_SETTING = 1e-4  # settings that were computed, such as a clipping factor, carry rounding too


@dataclass(frozen=True)
class Judged:
    """What is to be said of a pair of calls."""

    outcome: Outcome
    error: float | None = None
    allowed: Allowance | None = None
    settings: tuple[str, ...] = ()  # arguments that differ, in words
    dtypes: tuple[str, ...] = ()  # results whose type differs, in words
    worst: str = ""  # the output with the largest error
    bad_inputs: tuple[str, ...] = ()  # inputs that already differ
    nonfinite: str = ""
    noise: tuple[str, ...] = ()  # outputs that differ, but are nothing but rounding
    computed_in: tuple[str, ...] = ()  # the types of the first result on both sides, but of backward calls


Accepted = Callable[[Value, Value], bool]
Unused = Callable[[Call, str, Call], bool]


def judge(
    left: Call,
    right: Call,
    largest_gradient: float = 0.0,
    is_noise: Accepted = lambda left, right: False,
    exact: bool = False,
    gradients_differ: bool = False,
    is_unused: Unused = lambda left, place, right: False,
    has_agreed: Accepted = lambda left, right: False,
) -> Judged:
    """Compare two calls that belong together.

    `is_noise` tells of two tensors whether they were found to be nothing but rounding, of whatever size. With `exact`
    every bit counts. An optimizer's step is judged less strictly where `gradients_differ` at all. `is_unused` tells of
    an output whether nothing reads it in either run: then it is no result. `has_agreed` tells of two results of a
    module whether the calls inside that made them agree: then it is no stricter.

    >>> judge(call, call).outcome
    <Outcome.same: 'same'>
    """
    inputs = dict(errors(left.inputs, right.inputs))
    outputs = dict(errors(left.outputs, right.outputs))
    shapes_differ = [place for place, value in left.outputs.items() if _shape_differs(value, right.outputs.get(place))]
    noise = {place for place in inputs if is_noise(left.inputs[place], right.inputs[place])}
    noisy_shapes = {left.inputs[place].shape for place in noise}
    bad = tuple(
        place
        for place, difference in inputs.items()
        if place not in noise
        and (difference > 0 if exact else _is_bad(left.inputs[place], right.inputs[place], difference))
    )
    floats = {place: e for place, e in inputs.items() if left.inputs[place].is_float and place not in noise}
    inherited = max((e for e in floats.values() if math.isfinite(e)), default=0.0)
    allowed = allowance(left, right, inherited)
    settings = tuple((optimizer_settings if left.kind == "optimizer" else _settings)(left, right))
    judged = {
        place: difference
        for place, difference in outputs.items()
        # An index that changes because a value was rounded is no error of its own.
        if (left.outputs[place].is_float or not any(inputs.values())) and (exact or not is_unused(left, place, right))
    }
    dtypes = tuple(_dtypes(left.outputs, right.outputs))
    if shapes_differ:
        return Judged(Outcome.differs, math.inf, allowed, settings, dtypes, shapes_differ[0], bad)
    if left.kind == "module" and left.phase == "backward" and not left.inputs and not exact:
        # No gradient comes in, as for tables of angles, so what goes out was made elsewhere, and is judged there.
        judged = {}
    if not judged:
        outcome = Outcome.differs if bad else Outcome.same if inputs and not left.outputs else Outcome.unknown
        return Judged(outcome, None, allowed, settings, dtypes, "", bad)
    allowances = {place: allowance(left, right, inherited, place) for place in judged}
    excess: dict[str, float] = {}
    noise_out = []
    for place, difference in judged.items():
        one, other = left.outputs[place], right.outputs[place]
        excess[place] = _excess(one, other, difference, allowances[place], bool(settings), largest_gradient, left.kind)
        if left.kind == "optimizer" and gradients_differ:
            excess[place] /= OPTIMIZER_GROWTH
        made_of_noise = left.kind == "op" and (one.shape in noisy_shapes or f"0.{place}" in noise)
        if exact:
            excess[place] = math.inf if difference else 0.0
        elif is_noise(one, other) or (excess[place] > 1 and made_of_noise and math.isfinite(difference)):
            excess[place] = 0.0
        elif excess[place] > 1 and left.kind == "module" and has_agreed(one, other):
            excess[place] = 1.0
        if not exact and excess[place] <= 1 and _is_bad(one, other, difference):
            noise_out.append(place)
    worst = max(excess, key=lambda place: excess[place])
    agree = excess[worst] <= 1
    if agree and bad and not exact and has_same_result(left, right):
        bad = ()
    if agree and left.kind == "module":  # a mask of another kind or shape, from which the same was computed
        bad = tuple(place for place in bad if math.isfinite(inputs[place]))
    computed_in = _computed_in(left, right)
    stated = settings if left.kind == "optimizer" else len(set(computed_in)) > 1
    outcome = Outcome.same if agree and not bad and not stated else Outcome.differs
    return Judged(
        outcome, judged[worst], allowances[worst], settings, dtypes, worst, bad,
        _nonfinite(left.outputs[worst], right.outputs[worst]), tuple(noise_out), computed_in,
    )  # fmt: skip


def without_idle_weights(judged: Judged) -> Judged:
    """What is said of a module's call, without weights that differ and do not change what it returns.

    Some gradients are nothing but rounding, such as those of the bias of attention's keys. Adam makes steps of full
    size of them, in either direction.
    """
    are_weights = all(place.startswith("parameters.") for place in judged.bad_inputs)
    is_idle = judged.error is not None and judged.allowed is not None and judged.error <= judged.allowed.own
    if not (judged.bad_inputs and are_weights and is_idle) or judged.settings or len(set(judged.computed_in)) > 1:
        return judged
    return replace(judged, outcome=Outcome.same, bad_inputs=())


def has_same_result(left: Call, right: Call) -> bool:
    """Whether an operator returned the same in both runs whatever it was given, as a sum does in another order."""
    outputs = list(errors(left.outputs, right.outputs))
    return (
        left.kind == "op"
        and bool(outputs)
        and all(
            left.outputs[place].is_float and difference <= allowance(left, right, 0.0, place).total
            for place, difference in outputs
        )
    )


def errors(left: Mapping[str, Value], right: Mapping[str, Value]) -> Iterator[tuple[str, float]]:
    """The error of every tensor that both sides have, where it can be told."""
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
            yield f"{_place('output', place)} is {value.dtype} on the left, {other.dtype} on the right"


def _computed_in(left: Call, right: Call) -> tuple[str, ...]:
    """The types of the first result of both calls, of the same operator or module, but not in a backward pass."""
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
    """How many times more than allowed an output differs by."""
    if not math.isfinite(difference):
        return math.inf
    if not difference:
        return 0.0
    if kind in ("gradients", "optimizer"):  # nothing is known of what they were computed from
        scale = max(left.norm or 0.0, right.norm or 0.0)
        noise = max(1.0, 1e-3 * largest_gradient / scale) if scale else math.inf
        return difference / (ceiling([left, right]) * noise)
    total = min(allowed.total, 2 * unit([left])) if settings else allowed.total
    together = coherent(left, right)
    # Noise of this size moves a norm by its square, and by what the elements have in common by chance.
    by_chance = difference * (difference + 8 / math.sqrt(left.count)) + 2 * unit([left, right]) + allowed.own
    explained = by_chance + 16 * allowed.inherited * min(1.0, allowed.inherited * 16 + 8 / math.sqrt(left.count))
    systematic = together / explained if left.count >= 256 and unit([left, right]) > 2**-20 else 0.0
    return max(difference / total, systematic)


def optimizer_settings(left: Call, right: Call) -> Iterator[str]:
    """Settings of an optimizer that differ, in words, with the parameters for which they do."""
    names = [name for name in left.outputs if name in right.outputs]
    apart: dict[tuple[str, object, object], list[str]] = defaultdict(list)
    for setting in dict.fromkeys(place.partition(" of ")[0] for place in left.inputs):
        if setting.partition(".")[0] in _IMPLEMENTATION:
            continue
        for name in names:
            one, other = (call.inputs.get(f"{setting} of {name}", call.inputs.get(setting)) for call in (left, right))
            if one is not None and other is not None and not _alike(one, other):
                apart[setting, one.scalar, other.scalar].append(name)
    for (setting, value, other_value), members in apart.items():
        whose = "" if len(members) == len(names) else f" of {few(members)}"
        yield f"{setting}{whose} is {value} on the left, {other_value} on the right"


def _settings(left_call: Call, right_call: Call) -> Iterator[str]:
    """Arguments that differ, in words; one that has its default value is not in a dump."""
    if left_call.op != right_call.op:
        return
    left, right = left_call.inputs, right_call.inputs
    for place in dict.fromkeys([*left, *right]):
        value, other = left.get(place, _DEFAULT), right.get(place, _DEFAULT)
        if not (value.is_tensor or other.is_tensor or place.split(".")[0] in _PLACES or _alike(value, other)):
            one, two = ("the default" if setting is _DEFAULT else setting.scalar for setting in (value, other))
            yield f"{_place('argument', place)} is {one} on the left, {two} on the right"


def _alike(value: Value, other: Value) -> bool:
    one, two = value.scalar, other.scalar
    if isinstance(one, float | int) and isinstance(two, float | int):
        both_nan = one != one and two != two
        return both_nan or one == two or abs(one - two) <= _SAME_SETTING * max(abs(one), abs(two))
    return one == two or str(one).startswith(("cpu", "cuda", "npu"))


def _place(word: str, place: str) -> str:
    return f"{word} {place}" if place[:1].isdigit() else place


def _nonfinite(left: Value, right: Value) -> str:
    counts = [(value.nan or 0, value.inf or 0) for value in (left, right)]
    if counts[0] == counts[1]:
        return ""
    return " and ".join(
        f"{nan:,} NaN and {inf:,} Inf on the {side}" for side, (nan, inf) in zip(("left", "right"), counts, strict=True)
    )
