"""How far apart two tensors are, and how far apart they may be.

The error between two tensors is the L2 norm of their difference, relative to the larger of both norms. Without the
tensors it is estimated from their sketches. Without sketches it is bounded from below, because the tensors are at least
as far apart as their norms, their means times the root of the element count, and their extremes.

An operator may add a few roundings of its dtype and those of a sum, which grow with the root of its length. It may pass
on the error of its inputs, enlarged by a factor, up to the most that rounding can explain at all. An exponential turns
the rounding of a large number into a relative error of its size, and Adam's division enlarges the error of elements
whose denominator is small.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from npukit.precision.dump import Call, Value

_UNIT = {
    "float64": 2**-53,
    "float32": 2**-24,
    "float16": 2**-11,
    "bfloat16": 2**-9,
    "float8_e4m3fn": 2**-4,
    "float8_e5m2": 2**-3,
}
_CEILING = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
    "float8_e4m3fn": 0.2,
    "float8_e5m2": 0.4,
}
LARGEST = {"float64": sys.float_info.max, "float32": (2 - 2**-23) * 2.0**127, "float16": 65504.0}
LARGEST |= {"bfloat16": (2 - 2**-7) * 2.0**127}
_SMALLEST = 1e-12  # for tensors with different bits that a sketch cannot distinguish
ROUNDINGS = 4.0  # how many units of roundoff an operator may add
OPTIMIZER_GROWTH = 100.0  # Adam scales gradients to full steps, even those of pure rounding noise
_GROWTH = 16.0  # how much an operator may amplify the error of its inputs
# fmt: off
_ADDS = {
    "add", "sub", "rsub", "sum", "cumsum", "index_add", "scatter_add", "index_put", "_foreach_add", "_foreach_sub",
    "_foreach_lerp", "_foreach_addcmul", "_foreach_addcdiv", "_fused_adamw", "_fused_adam", "_fused_sgd",
}
_UPDATES = {"lerp", "addcmul", "addcdiv"}
# fmt: on
_MULTIPLIES = ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "convolution", "convolution_backward")
_EXPONENTIALS = {"exp", "exp2", "expm1", "_ctc_loss_backward"}
_DIVIDES = {"addcdiv", "_foreach_addcdiv"}
_NORMALIZES = ("norm", "var", "std")
# Results that are means, which normalisation layers keep for the backward pass or for evaluation.
_MEANS = {"native_layer_norm": "1", "native_group_norm": "1", "native_batch_norm": "13", "var_mean": "1"}


@dataclass(frozen=True)
class Allowance:
    """How much the outputs of a pair of calls may differ."""

    own: float  # by the operator's own rounding
    inherited: float  # the largest error of its inputs
    total: float

    @property
    def is_grown(self) -> bool:
        """Whether the error of the inputs could explain more than the ceiling allows."""
        return _GROWTH * self.inherited + self.own > self.total


def unit(values: Iterable[Value]) -> float:
    """The unit roundoff of the coarsest dtype among values."""
    return max((_UNIT.get(_real(value.dtype), 2**-24) for value in values if value.is_float), default=2**-24)


def ceiling(values: Iterable[Value]) -> float:
    """The largest error that rounding can explain in a whole network, for the coarsest dtype among values."""
    return max((_CEILING.get(_real(value.dtype), 1e-4) for value in values if value.is_float), default=1e-4)


def _real(dtype: str) -> str:
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


def error(left: Value, right: Value) -> float | None:
    """The relative error between two tensors; infinite if they are incomparable, None if it is unknown.

    >>> error(Value("float32", (4,), norm=2.0, mean=1.0), Value("float32", (4,), norm=2.2, mean=1.1))
    0.09090909090909098
    """
    if left.hash and left.hash == right.hash and left.dtype == right.dtype and _sizes(left) == _sizes(right):
        return 0.0
    if left.shape != right.shape or left.is_float != right.is_float:
        return math.inf
    if not left.is_float:
        return _integers(left, right)
    if not _same_nonfinite(left, right):
        return math.inf
    have_bits = bool(left.hash and right.hash) and left.dtype == right.dtype
    if have_bits and _is_mask(left) and _is_mask(right):
        return math.inf  # no rounding turns one mask into another, and their norms overflow
    least = _SMALLEST if have_bits else 0.0
    scale = max(left.norm or 0.0, right.norm or 0.0)
    if left.sketch and len(left.sketch) == len(right.sketch) and math.isfinite(scale):
        distance = math.dist(left.sketch, right.sketch)
        return max(distance / scale if scale else 0.0, least)
    bound = _at_least(left, right)
    return bound if bound is None else max(bound, least)


def _is_mask(value: Value) -> bool:
    """Whether a tensor is 0 where something is kept and hugely negative or -inf elsewhere, as far as figures show."""
    return value.maximum == 0.0 and value.norm is not None and not math.isfinite(value.norm) and not value.nan


def _sizes(value: Value) -> list[int]:
    """The shape without dimensions of size one."""
    return [size for size in value.shape if size > 1]


def coherent(left: Value, right: Value) -> float:
    """The relative difference of the norms, which rounding hardly changes although it changes single elements a lot."""
    if left.norm is None or right.norm is None or not math.isfinite(left.norm + right.norm):
        return 0.0
    larger = max(left.norm, right.norm)
    return abs(left.norm - right.norm) / larger if larger else 0.0


def _integers(left: Value, right: Value) -> float | None:
    if left.hash and right.hash and left.dtype == right.dtype:
        return math.inf
    known = [(a, b) for a, b in ((left.minimum, right.minimum), (left.maximum, right.maximum)) if None not in (a, b)]
    return None if not known else 0.0 if all(a == b for a, b in known) else math.inf


def _same_nonfinite(left: Value, right: Value) -> bool:
    if None not in (left.nan, right.nan):
        return (left.nan, left.inf) == (right.nan, right.inf)
    figures = [(left.minimum, right.minimum), (left.maximum, right.maximum)]
    return all(math.isfinite(a) == math.isfinite(b) for a, b in figures if a is not None and b is not None)


def _at_least(left: Value, right: Value) -> float | None:
    """The smallest error that two tensors with these figures can have."""
    bounds = left.minimum, left.maximum, right.minimum, right.maximum
    scale = _largest(left.norm, right.norm) or _largest(*bounds) * math.sqrt(left.count)
    weights = {"norm": 1.0, "mean": math.sqrt(left.count), "minimum": 1.0, "maximum": 1.0}
    differences = []
    for name, weight in weights.items():
        one, other = getattr(left, name), getattr(right, name)
        if one is not None and other is not None and math.isfinite(one) and math.isfinite(other):
            differences.append(abs(one - other) * weight)
    if not differences:
        return None
    largest = max(differences)
    return largest / scale if scale else math.inf if largest else 0.0


def _largest(*figures: float | None) -> float:
    return max((abs(figure) for figure in figures if figure is not None and math.isfinite(figure)), default=0.0)


def allowance(left: Call, right: Call, inherited: float, place: str = "") -> Allowance:
    """How much a pair of calls may differ in one output if their inputs differ by `inherited`."""
    values = [*left.inputs.values(), *left.outputs.values(), *right.outputs.values()]
    coarse = unit(values)
    # If a result cancels out to rounding noise, one run may have an exact zero.
    call = max(left, right, key=lambda call: call.outputs[place].norm or 0.0 if place in call.outputs else 0.0)
    cancelled = cancellation(call, place)
    exponent = _exponent(left)
    own = ROUNDINGS * (coarse * exponent + math.sqrt(reduction(left)) * min(coarse, 2**-24)) * cancelled
    growth = max(_GROWTH, exponent)
    grown = min(growth * inherited, ceiling(values)) if math.isfinite(inherited) else ceiling(values)
    grown += min(inherited, ceiling(values)) * (cancelled - 1)  # cancellation leaves the errors of what was added
    if left.phase == "optimizer" and inherited:
        grown = OPTIMIZER_GROWTH * ceiling(values) + inherited * _quotient(left, place)
    return Allowance(own, inherited, own + grown)


def _exponent(call: Call) -> float:
    """The largest number of which an operator computes an exponential; 1 for other operators."""
    if call.op.rstrip("_") not in _EXPONENTIALS:
        return 1.0
    return max(1.0, _largest(*(value.maximum for value in call.inputs.values() if value.is_float)))


def _quotient(call: Call, place: str) -> float:
    """How much a scaled quotient, added to a tensor, enlarges an error that may lie in any one element of its dividend.

    The smallest divisor decides, which for Adam's first steps is that of an element whose gradient is rounding noise.
    """
    if call.op.rstrip("_") not in _DIVIDES or place not in call.outputs:
        return 0.0
    element = place[1:]  # of a list of tensors
    dividend, divisor = call.inputs.get(f"1{element}"), call.inputs.get(f"2{element}")
    size, smallest = call.outputs[place].norm, divisor.minimum if divisor else None
    if dividend is None or not size or smallest is None or smallest <= 0:
        return 0.0
    factors = [abs(value.scalar) for value in call.inputs.values() if isinstance(value.scalar, float)]
    return max(factors, default=1.0) * (dividend.norm or 0.0) / smallest / size


def reduction(call: Call) -> int:
    """The length of the longest sum that an operator may compute, judging by shapes alone."""
    tensors = [value for value in call.inputs.values() if value.is_tensor]
    outputs = [value.count for value in call.outputs.values() if value.is_tensor and value.count]
    longest = max((max(value.shape, default=1) for value in tensors), default=1)
    kernels = [value.count // value.shape[0] for value in tensors if len(value.shape) >= 3 and value.shape[0]]
    shrunk = max((value.count for value in tensors), default=1) // min(outputs, default=1)
    return max(1, longest, shrunk, *(kernels if "conv" in call.op else ()))


def cancellation(call: Call, place: str) -> float:
    """How much smaller a result is than its summands, whose rounding errors it carries."""
    output = call.outputs.get(place)
    if output is None or not output.norm:
        return 1.0
    op = call.op.rstrip("_")
    inputs = [value for value in call.inputs.values() if value.is_float and value.norm and math.isfinite(value.norm)]
    norms = [value.norm or 0.0 for value in inputs]
    if not norms:
        return 1.0
    if op in _UPDATES:  # the addends are scaled, so only the tensor that is updated has the size of the result
        expected = call.inputs["0"].norm or 0.0 if "0" in call.inputs else 0.0
    elif op in _ADDS:
        expected = max(norms)
    elif op in _MULTIPLIES and len(norms) >= 2:
        expected = math.prod(sorted(norms)[-2:]) / math.sqrt(max(inputs[-1].shape, default=1))
    elif op.endswith("norm_backward") and output.count < inputs[0].count:  # sums of the incoming gradient
        expected = norms[0]
    elif any(word in op.lower() for word in _NORMALIZES):
        first = inputs[0]
        if place in _MEANS.get(call.op, ""):
            return min(1e6, max(1.0, (first.norm or 0.0) * math.sqrt(output.count / first.count) / output.norm))
        rms, mean = (first.norm or 0.0) / math.sqrt(first.count), abs(first.mean or 0.0)
        deviation = math.sqrt(max(rms * rms - mean * mean, 0.0))
        return min(1e6, max(1.0, rms / deviation if deviation else 1e6))
    else:
        return 1.0
    return min(1e6, max(1.0, expected / output.norm)) if math.isfinite(expected) else 1.0
