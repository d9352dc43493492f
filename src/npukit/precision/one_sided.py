"""Find gradients that only one of two runs computes, and where this begins: a frozen weight or a detached tensor."""

from __future__ import annotations

from npukit.precision.dump import Call
from npukit.precision.explaining import place_of
from npukit.precision.provenance import SIDES
from npukit.precision.result import Divergence, Outcome, Row


class OneSidedGradients:
    """Collects paired and unpaired calls, in order."""

    def __init__(self) -> None:
        self._in_both: set[str] = set()  # modules that both runs called
        self._paired = 0
        self._alone: list[tuple[Row, Call]] = []
        self._begin: list[tuple[int, str, Call]] = []  # the side that requires a gradient, the tensor, and the call

    def alone(self, row: Row, call: Call) -> None:
        """Add a call that only one run made."""
        if call.kind == "gradients":
            self._alone.append((row, call))

    def pair(self, left: Call, right: Call) -> None:
        """Add a call that both runs made."""
        self._paired += left.kind == "gradients"
        if left.kind != "module" or left.phase != "forward":
            return
        self._in_both.update((left.path, right.path))
        for word, ours, theirs in (("input", left.inputs, right.inputs), ("output", left.outputs, right.outputs)):
            for place, value in ours.items():
                requires = value.requires_grad, theirs[place].requires_grad if place in theirs else None
                if set(requires) == {True, False}:
                    title = f"{word} {place}" if place[:1].isdigit() else place
                    self._begin.append((requires.index(True), title, left))

    def divergence(self) -> Divergence | None:
        """Where gradients end in one run but not in the other; None if both have the same gradients."""
        alone = [(row, call) for row, call in self._alone if call.path in self._in_both]
        if not alone or not self._paired:
            return None
        row, first = alone[0]
        side = int(row.outcome is Outcome.only_right)
        count = f"{len(alone)} modules, such as {first.path}" if len(alone) > 1 else (first.path or "the root module")
        what, at = f"Only the {SIDES[side]} run computes gradients of {count}", first
        begin = next(((title, call) for number, title, call in self._begin if number == side), None)
        if begin:
            title, at = begin
            what = f"{what}: {title} of {at.title} requires a gradient there only"
        return Divergence("gradient", row, f"{what}.", at.path, place_of(at.stack), "", at.stack)
