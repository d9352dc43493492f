"""Trace tensors through two runs: which call made them, whether the other run has that call, and who reads them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npukit.precision.dump import Call, Value
from npukit.precision.judge import draws
from npukit.precision.result import Outcome

_MAX_CALLS = 16  # extra calls of one run between two calls that both make
_ANY = "any row"
SIDES = ("left", "right")
_Read = defaultdict[str, set[str]]


@dataclass(frozen=True)
class Made:
    """The call that made a tensor, and the outcome of its row."""

    call: Call
    outcome: Outcome

    @property
    def is_alone(self) -> bool:
        """Whether only one run made this call."""
        return self.outcome in (Outcome.only_left, Outcome.only_right)


class Provenance:
    """The calls of both runs so far, everything that the calls of a step read, and which rows are paired."""

    def __init__(self, left: Sequence[Call], right: Sequence[Call], partners: Mapping[str, str] | None = None) -> None:
        self._made: tuple[dict[str, Made], dict[str, Made]] = ({}, {})  # by row name, and by the hash of each output
        self._read = [_read(calls) for calls in (left, right)]
        self._titles = [{call.name: call.title for call in calls} for calls in (left, right)]
        self._partners = dict(partners or {})

    def belong_together(self, left: str, right: str) -> bool:
        """Whether two rows are paired, or one of them is unknown."""
        return not (left and right) or self._partners.get(left) == right

    def add(self, side: int, call: Call, outcome: Outcome) -> None:
        """Add a call that has been judged."""
        made = Made(call, outcome)
        self._made[side][call.name] = made
        # A constant's values do not reveal which call made it.
        telling = (value for value in call.outputs.values() if value.hash and value.minimum != value.maximum)
        self._made[side].update({value.hash: made for value in telling})

    def makers(self, left: Value, right: Value) -> list[Made | None]:
        """The calls that made a tensor in the left and in the right run."""
        return [_maker(made, value) for made, value in zip(self._made, (left, right), strict=True)]

    def has_agreed(self, left: Value, right: Value) -> bool:
        """Whether two tensors are still what two paired calls returned, and those calls agreed."""
        makers = self.makers(left, right)
        return all(
            made is not None and made.outcome is Outcome.same and not was_changed(value, made.call)
            for made, value in zip(makers, (left, right), strict=True)
        ) and self.belong_together(*(made.call.name for made in makers if made))

    def title_of(self, side: int, row: str) -> str:
        """A readable name for a row, as far as it is known."""
        return self._titles[side].get(row) or row.rsplit(".", 2)[0]

    def alone(self, left: Value, right: Value) -> tuple[int, Call] | None:
        """The side and the call that made a tensor, if only one run has that call."""
        for side, maker in enumerate(self.makers(left, right)):
            if maker and maker.is_alone:
                return side, maker.call
        return None

    def are_both_alone(self, left: Value, right: Value) -> bool:
        """Whether each run made a tensor with a call that the other does not have."""
        return all(maker is not None and maker.is_alone for maker in self.makers(left, right))

    def inserted(self, left: Value, right: Value) -> tuple[int, Call] | None:
        """The extra call that made a tensor in one run, if the other run demonstrably passes on that call's input."""
        makers = self.makers(left, right)
        alone = [maker is not None and maker.is_alone for maker in makers]
        if sum(alone) != 1 or not left.hash or not right.hash:
            return None
        side = alone.index(True)
        maker = makers[side]
        assert maker is not None
        return (side, maker.call) if self._is_derived_from(side, maker.call, (left, right)[1 - side].hash) else None

    def _is_derived_from(self, side: int, call: Call, wanted: str) -> bool:
        """Whether a call, or a chain of calls of this run alone that leads to it, received a tensor with this hash."""
        waiting, seen = deque([call]), {call.name}
        while waiting and len(seen) <= _MAX_CALLS:
            for value in waiting.popleft().inputs.values():
                if value.hash == wanted:
                    return True
                maker = _maker(self._made[side], value) if value.is_tensor else None
                if maker and maker.is_alone and maker.call.name not in seen:
                    seen.add(maker.call.name)
                    waiting.append(maker.call)
        return False

    def is_unused(self, left: Call, place: str, right: Call) -> bool:
        """Whether no call reads an output although the call's other outputs are read, or the output is just random."""
        sides = list(zip((left, right), self._read, strict=True))
        if left.kind != "op" or any(_is_read(call, place, read) for call, read in sides):
            return False
        return draws(left) or any(_is_read(call, other, read) for call, read in sides for other in call.outputs)


def was_changed(value: Value, maker: Call) -> bool:
    """Whether a tensor is no longer what its maker returned. This cannot be known for a part of a result."""
    made = [output for output in maker.outputs.values() if output.count == value.count and output.dtype == value.dtype]
    return bool(made) and not any(output.hash == value.hash or same_values(output, value) for output in made)


def is_part(value: Value, maker: Call) -> bool:
    """Whether a tensor is smaller than every result of its maker."""
    return all(value.count < output.count for output in maker.outputs.values())


def same_values(left: Value, right: Value) -> bool:
    """Whether two tensors hold the same values, possibly in a different order, as far as the statistics show."""
    figures = [(left.minimum, right.minimum), (left.maximum, right.maximum)]
    figures += [(left.norm, right.norm)] if left.is_float else []
    return (left.count, left.dtype) == (right.count, right.dtype) and all(
        one is not None and other is not None and math.isclose(one, other, rel_tol=1e-6) for one, other in figures
    )


def other_layout(left: Value, right: Value) -> bool:
    """Whether two tensors hold the same values with their dimensions in a different order."""
    is_permuted = left.shape != right.shape and sorted(left.shape) == sorted(right.shape)
    return is_permuted and same_values(left, right)


def _read(calls: Sequence[Call]) -> _Read:
    """The hashes of everything that calls receive and modules return, by the row that made it."""
    read: _Read = defaultdict(set)
    for call in calls:
        for value in (*call.inputs.values(), *(call.outputs.values() if call.kind != "op" else ())):
            if value.is_tensor:
                read[value.maker].add(value.hash)
                read[_ANY].add(value.hash)
    return read


def _is_read(call: Call, place: str, read: _Read) -> bool:
    """Whether any call reads an output or a part of it; True if that is unknown."""
    output = call.outputs.get(place)
    if output is None or not output.hash or (call.op.endswith("_") and not draws(call)):
        return True
    others = {value.hash for name, value in call.outputs.items() if name != place}
    return output.hash in read[_ANY] or not read[call.name] <= others


def _maker(made: Mapping[str, Made], value: Value) -> Made | None:
    """The call that computed a tensor. Calls that only copied it, for example to another device, are skipped."""
    maker = made.get(value.maker) or made.get(value.hash)
    while maker and "copy" in maker.call.op and value.hash:
        source = next((given for given in maker.call.inputs.values() if given.hash == value.hash), None)
        if source is None:
            break
        maker = made.get(source.maker)
    return maker
