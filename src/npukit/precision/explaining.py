"""Describe a difference in one sentence, claiming only what the recordings of both runs show."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from npukit.precision.dump import Call, Value
from npukit.precision.judge import Judged, draws, title_of
from npukit.precision.provenance import SIDES, Provenance, is_part, other_layout, same_values, was_changed
from npukit.precision.result import Kind, Outcome

_FRAME = re.compile(r"File (?P<file>.+), line (?P<line>\d+), in (?P<name>[^,]+)")


@dataclass(frozen=True)
class Reason:
    """A sentence about a difference, and the innermost module that contains every call it mentions."""

    kind: Kind
    what: str
    path: str


def explain(left: Call, right: Call, judged: Judged, origins: Provenance) -> Reason:
    """Explain why two paired calls differ.

    >>> explain(left, right, judge(left, right), Provenance([left], [right])).kind
    'operator'
    """
    if judged.bad_inputs:
        return _input(left, right, judged.bad_inputs[0], origins)
    if left.kind == "module" and judged.worst in right.outputs:
        alone = origins.alone(left.outputs[judged.worst], right.outputs[judged.worst])
        if alone:
            return made_alone(f"{title_of('output', judged.worst)} of {left.title}", left, *alone)
    return Reason(*_results(left, right, judged, origins), left.path)


def made_alone(whose: str, reader: Call, side: int, maker: Call) -> Reason:
    """The reason for a tensor that was produced by a call of only one run."""
    place = place_of(maker.stack)
    where = f" ({place})" if place else ""
    what = f"{whose} differs: it comes from {maker.title}, which ran on the {SIDES[side]} only{where}."
    return Reason("missing", what, _common_module(reader.path, maker.path))


def inserted(left: Call, right: Call, place: str, origins: Provenance) -> Reason | None:
    """The reason for an extra computation of one run between two calls that both runs make."""
    more = origins.inserted(left.inputs[place], right.inputs[place])
    return made_alone(f"{title_of('input', place)} of {left.title}", left, *more) if more else None


def _results(left: Call, right: Call, judged: Judged, origins: Provenance) -> tuple[Kind, str]:
    """The reason for results that differ although the inputs agree."""
    output, title = title_of("output", judged.worst), left.title
    size = f"by {judged.error:.2g} relative" if judged.error not in (None, math.inf) else "in kind"
    if judged.nonfinite:
        return "nonfinite", f"{title} returns {judged.nonfinite}, from inputs that agree."
    if judged.dtypes and left.kind != "optimizer":
        return "dtype", f"{title} is computed in a different type: {judged.dtypes[0]}."
    if judged.settings:
        return "argument", f"{title} is called with different settings: {'; '.join(judged.settings)}."
    if draws(left):
        return "random", f"{title} draws different random numbers on each side."
    if judged.worst in right.outputs and other_layout(left.outputs[judged.worst], right.outputs[judged.worst]):
        return "layout", _layout(f"{output} of {title}", left.outputs[judged.worst], right.outputs[judged.worst])
    shapes = [list(call.outputs[judged.worst].shape) for call in (left, right) if judged.worst in call.outputs]
    if len(shapes) == 2 and shapes[0] != shapes[1]:
        return (
            "shape",
            f"{title}: {output} is {shapes[0]} on the left, {shapes[1]} on the right, from inputs that agree.",
        )
    if judged.error == math.inf:
        return "shape", f"{title}: {output} has different shapes or values on each side, from inputs that agree."
    for place in left.inputs:
        if place in right.inputs and _is_reordered(left.inputs[place], right.inputs[place], origins):
            values = left.inputs[place], right.inputs[place]
            return _unmade_input(left, place, f"{title_of('input', place)} of {title}", values)
    if left.kind == "gradients":
        return "operator", f"{title}: {judged.worst} differs {size}{_last_writers(left, right, judged.worst, origins)}."
    allowed = judged.allowed
    if allowed is None or not allowed.is_grown:
        return "operator", f"{title}: {'inputs agree, ' if left.inputs else ''}{output} differs {size}."
    if judged.error is not None and judged.error <= 16 * allowed.inherited:
        return "drift", (
            f"The error grew gradually and exceeds what rounding explains at {title}; no single call is to blame."
        )
    return "operator", f"{title}: inputs agree within {allowed.inherited:.2g}, {output} differs {size}."


def _is_reordered(left: Value, right: Value, origins: Provenance) -> bool:
    """Whether input data has the same values in a different order, which a sketch cannot always tell."""
    if not (left.is_float and left.hash and right.hash) or left.hash == right.hash or any(origins.makers(left, right)):
        return False
    return (left.minimum, left.maximum) == (right.minimum, right.maximum) and same_values(left, right)


def _last_writers(left: Call, right: Call, place: str, origins: Provenance) -> str:
    """Which calls last wrote to an output, if they are not the same in both runs."""
    rows = [call.outputs[place].maker for call in (left, right)]
    if rows[0].rsplit(".", 2)[0] == rows[1].rsplit(".", 2)[0] or not all(rows):
        return ""
    titles = [origins.title_of(side, row) for side, row in enumerate(rows)]
    return f"; it was written last by {titles[0]} on the left and by {titles[1]} on the right"


def _input(left: Call, right: Call, place: str, origins: Provenance) -> Reason:
    values = left.inputs[place], right.inputs[place]
    title = f"{title_of('input', place)} of {left.title}"
    if other_layout(*values):
        return Reason("layout", _layout(title, *values), left.path)
    if alone := origins.alone(*values):
        return made_alone(title, left, *alone)
    makers = origins.makers(*values)
    maker = makers[0] or makers[1]
    # A constant may hold the values of another tensor by chance, in one of the runs.
    is_constant = not all(makers) and not any(value.maker for value in values)
    if maker is None or is_constant:
        return Reason(*_unmade_input(left, place, title, values), left.path)
    path = _common_module(left.path, maker.call.path)
    rows = [made.call.name if made else value.maker for made, value in zip(makers, values, strict=True)]
    if not origins.belong_together(*rows):
        titles = [origins.title_of(side, row) for side, row in enumerate(rows)]
        what = f"{title} is a different tensor on each side: of {titles[0]} on the left, of {titles[1]} on the right."
        return Reason("reads", what, path)
    if any(made and was_changed(value, made.call) for made, value in zip(makers, values, strict=True)):
        return Reason("between", (
            f"{title} differs although {maker.call.title}, which made it, agreed: its values were changed by nothing "
            "that was recorded."
        ), path)  # fmt: skip
    if all(
        made and made.outcome is Outcome.same and is_part(value, made.call)
        for made, value in zip(makers, values, strict=True)
    ):
        return Reason("layout", (
            f"{title} differs although {maker.call.title}, which made it, agreed: each run reads a different part "
            "of its result."
        ), path)  # fmt: skip
    return Reason("drift", (
        f"{title} differs by more than rounding explains; {maker.call.title}, which made it, differed by less."
    ), path)  # fmt: skip


def _layout(title: str, left: Value, right: Value) -> str:
    shapes = f"{list(left.shape)} on the left, {list(right.shape)} on the right"
    return f"{title} is in a different layout: {shapes}, with the same values."


def _unmade_input(left: Call, place: str, title: str, values: tuple[Value, Value]) -> tuple[Kind, str]:
    order = ", by the order of its values" if same_values(*values) else ""
    if place.startswith("parameters."):
        return "source", f"{title} already differs{order}: the weights are not the same on both sides."
    if left.kind == "module" and left.phase == "backward":
        return "outside", (
            f"The gradient that reaches {left.title} already differs: the loss, or other code outside of modules "
            "that uses its output, is not the same. Capture with --level ops to see it."
        )
    if left.kind == "module" and left.path:
        return "outside", (
            f"{title} already differs, and no module made it: code between modules did. "
            "Capture with --level ops to see it."
        )
    return "source", f"{title} already differs{order}, and no recorded call made it: the data or weights differ."


def _common_module(*paths: str) -> str:
    """The innermost module that contains all of these modules."""
    names = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(level[0] for level in itertools.takewhile(lambda level: len(set(level)) == 1, names))


def place_of(stack: Sequence[str]) -> str:
    """The innermost line of a stack outside installed packages, or the innermost line if there is none.

    >>> place_of(["File /a/site-packages/x.py, line 1, in f, \\n y", "File train.py, line 7, in main, \\n z"])
    'train.py:7'
    """
    frames = [match for frame in stack if (match := _FRAME.match(frame))]
    own = [match for match in frames if "site-packages" not in match["file"] and "dist-packages" not in match["file"]]
    chosen = next(iter(own or frames), None)
    return f"{chosen['file']}:{chosen['line']}" if chosen else ""
