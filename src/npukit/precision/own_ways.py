"""Find modules that each run computes in its own way with the same result: differences inside them do not count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from npukit.precision.align import plain_path
from npukit.precision.dump import Call
from npukit.precision.provenance import SIDES

Place = tuple[str, str]  # a module path, and forward, backward or optimizer


@dataclass(frozen=True)
class _Pass:
    """One pass through a module, from its first to its last row number."""

    first: int
    last: int
    has_own_ways: bool  # each run has operators that the other does not have
    agrees: bool


class OwnWays:
    """Reads rows in order, and can then say of each row whether it merely computes the same result in a different way.

    If operators were not recorded, a module whose submodules receive different inputs may be computing in its own way.
    """

    def __init__(self, has_operators: bool) -> None:
        self._has_operators, self._number = has_operators, 0
        self._passes: dict[Place, list[_Pass]] = defaultdict(list)
        self._alone: dict[Place, set[str]] = defaultdict(set)  # sides with extra operators (forward: in this pass)

    def alone(self, side: str, call: Call) -> None:
        """Add an operator that the other run does not have."""
        self._number += 1
        if call.kind == "op":
            self._alone[plain_path(call.path), call.phase].add(side)

    def both(self, call: Call, agrees: bool, other_op: str) -> int:
        """Add a call of both runs and return its number. `other_op` is what the right run calls instead."""
        self._number += 1
        place = plain_path(call.path), call.phase
        if call.kind == "op" and call.op.rstrip("_") != other_op.rstrip("_"):
            self._alone[place].update(SIDES)  # such as a product with a bias, and one to which it is added later
        if call.kind == "module":
            passes = self._passes[place]
            has_own_ways = len(self._alone[place]) == 2
            passes.append(_Pass(passes[-1].last + 1 if passes else 0, self._number, has_own_ways, agrees))
            if call.phase == "forward":
                self._alone[place].clear()
        return self._number

    def pass_of(self, place: Place) -> int:
        """How many times the module has returned so far, which identifies the current pass."""
        return len(self._passes[plain_path(place[0]), place[1]])

    def cover(self, number: int, place: Place, is_operator: bool, has_other_inputs: bool) -> bool:
        """Whether a row lies in a module that each run computes in its own way with the same result."""
        path, phase = plain_path(place[0]), place[1]
        for around in _with_ancestors(path) if is_operator else _with_ancestors(path.rpartition(".")[0]):
            if phase == "forward":
                passes = [one for one in self._passes[around, phase] if one.first <= number <= one.last]
                has_own_ways = any(one.has_own_ways for one in passes)
            else:  # backward operators may run after the gradients of the module's inputs are known
                passes, has_own_ways = self._passes[around, phase], len(self._alone[around, phase]) == 2
            if has_own_ways or (passes and has_other_inputs and not self._has_operators):
                return any(one.agrees for one in passes) and (around != "" or path == "")
        return False


def _with_ancestors(path: str) -> Iterator[str]:
    """A module and its ancestors, innermost first.

    >>> list(_with_ancestors("layers.0"))
    ['layers.0', 'layers', '']
    """
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""
