"""Compare two dumps: align their rows, judge each pair, and find the first place where the runs diverge."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from npukit.errors import NpukitError
from npukit.precision.align import align, called_like
from npukit.precision.causes import causes_of
from npukit.precision.dump import Call, Dump, Value
from npukit.precision.environments import recorded_environment
from npukit.precision.explaining import Reason, explain, inserted, place_of
from npukit.precision.judge import (
    Judged,
    Known,
    draws,
    errors,
    has_same_result,
    judge,
    optimizer_settings,
    without_idle_weights,
)
from npukit.precision.losses import losses_of
from npukit.precision.one_sided import OneSidedGradients
from npukit.precision.own_ways import OwnWays, Place
from npukit.precision.parts import has_other_order, of_all_parts, parts_of, uneven_modules
from npukit.precision.provenance import SIDES, Provenance
from npukit.precision.reading.find import find_dumps, read
from npukit.precision.replay import replay
from npukit.precision.result import Comparison, Divergence, Loss, Outcome, Row
from npukit.precision.tolerance import ROUNDINGS, unit

_MAX_COMPARED = 64  # divergences to keep; the first one that is not settled is reported
_SAME_LOSS = 1e-4  # what another order of summing changes
_OPERATORS = ("Aten.", "NPU.", "Torch.")


def compare(left: Path, right: Path, rename: Mapping[str, str] | None = None, exact: bool = False) -> Comparison:
    """Compare all steps and ranks that two dumps have in common. With `exact`, results must agree bit for bit.

    >>> compare(Path("gpu"), Path("npu")).first.what
    """
    ours, theirs = find_dumps(left), find_dumps(right)
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        raise NpukitError(
            f"{left} has steps and ranks {_list(ours)}, {right} has {_list(theirs)}: none is in both. "
            "Name one step's or rank's folder on each side."
        )
    rows: list[Row] = []
    renames: dict[str, str] = {}
    losses: list[Loss] = []
    notes: list[str] = []
    first: Divergence | None = None
    for step, rank in both:
        dumps = read(ours[step, rank], step), read(theirs[step, rank], step)
        is_later = first is None and step > both[0][0]
        compared = compare_dumps(*dumps, rename, step, rank, exact, is_later)
        rows += compared.rows
        renames.update(compared.renames)
        losses += compared.losses
        notes += compared.notes
        first = first or compared.first
    counts = Counter(row.outcome.value for row in rows)
    if not counts[Outcome.same.value] + counts[Outcome.differs.value]:
        raise NpukitError(f"{left} and {right} have no row in common: are they dumps of the same model and level?")
    if first:
        environments = recorded_environment(left), recorded_environment(right)
        first = dataclasses.replace(first, causes=causes_of(first, environments))
    notes += [
        f"step {step}, rank {rank} is only in {left if (step, rank) in ours else right}"
        for step, rank in sorted(ours.keys() ^ theirs.keys())
    ]
    return Comparison(str(left), str(right), first, dict(counts), renames, tuple(notes), tuple(rows), tuple(losses))


def compare_dumps(
    left: Dump,
    right: Dump,
    rename: Mapping[str, str] | None = None,
    step: int = 0,
    rank: int = 0,
    exact: bool = False,
    is_later: bool = False,
) -> Comparison:
    """Compare one step of one process with one step of another. `is_later` says that all steps before it agreed.

    >>> compare_dumps(read(a), read(b)).coverage
    1.0
    """
    losses = losses_of(left, right, step, rank)
    options = rename, step, rank, exact, is_later
    if parts := parts_of(left, right):
        compared = _compare_all(of_all_parts(left), of_all_parts(right), *options)
        note = f"the left run computes the batch in {parts[0]} parts, the right run in {parts[1]}"
        return _with(compared, losses, note)
    compared = _compare_all(left, right, *options)
    if compared.first and not exact and has_other_order(left, right) and losses and all(map(_agree, losses)):
        of_batch = _compare_all(of_all_parts(left), of_all_parts(right), *options)
        if of_batch.same:
            return _with(of_batch, losses, "the runs have the rows of the batch in a different order")
    return dataclasses.replace(compared, losses=losses)


def _agree(loss: Loss) -> bool:
    return math.isclose(loss.left, loss.right, rel_tol=_SAME_LOSS)


def _with(compared: Comparison, losses: tuple[Loss, ...], note: str) -> Comparison:
    """A comparison of what concerns the whole batch."""
    note = f"{note}: gradients and the optimizer are compared, not the passes"
    return dataclasses.replace(compared, losses=losses, notes=(*compared.notes, note))


def _compare_all(
    left: Dump, right: Dump, rename: Mapping[str, str] | None, step: int, rank: int, exact: bool, is_later: bool
) -> Comparison:
    """Compare all rows of two dumps."""
    aligned = align(left.calls, right.calls, rename)
    largest = max(
        (value.norm or 0.0 for call in left.calls if call.kind == "gradients" for value in call.outputs.values()),
        default=0.0,
    )
    partners = {one.name: other.name for one, other in aligned.pairs if one and other}
    has_operators = any(call.kind == "op" for call in left.calls)
    origins, uneven = Provenance(left.calls, right.calls, partners), uneven_modules(left, right)
    walk = _Walk(origins, has_operators, uneven, step, rank, largest, exact, is_later)
    rows = walk.settled([walk.row(one, other) for one, other in aligned.pairs])
    counts = Counter(row.outcome.value for row in rows)
    first = walk.end()
    notes = tuple(walk.notes(first))
    return Comparison(str(left.file), str(right.file), first, dict(counts), aligned.renames, notes, rows)


def _list(dumps: Mapping[tuple[int, int], Path]) -> str:
    shown = [f"{step}/{rank}" for step, rank in sorted(dumps)[:4]]
    return ", ".join(shown) + (" …" if len(dumps) > 4 else "")


class _Walk:
    """Judges pairs in order and remembers the outcome of each."""

    def __init__(
        self,
        origins: Provenance,
        has_operators: bool,
        uneven: frozenset[str],
        step: int,
        rank: int,
        largest_gradient: float,
        exact: bool,
        is_later: bool,
    ) -> None:
        self._step, self._rank, self._largest_gradient, self._exact = step, rank, largest_gradient, exact
        self._origins, self._is_later = origins, is_later
        self._gradients = OneSidedGradients()
        self._gradients_differ = False  # even if only by rounding
        self._noise: set[tuple[str, str]] = set()  # pairs of hashes, and pairs of rows all of whose outputs are noise
        self._divergences: dict[tuple[Place, int], Divergence] = {}  # the first one of each pass of a module
        self._own_ways = OwnWays(has_operators)
        self._numbers: dict[str, int] = {}  # positions of rows of the left run
        self._other_inputs: set[str] = set()  # rows of the left run whose inputs differ from the right run's
        self._belongs: dict[str, Place] = {}  # the module to which autograd's own additions of gradients belong
        self._uneven = uneven  # modules that one run calls more often than the other
        self._unlike: set[str] = set()  # rows of the left run that were paired with an unrelated row
        self._late: set[str] = set()  # rows after the start of a backward pass
        self._small: Divergence | None = None  # an extra computation of one run whose effect is no larger than rounding
        self._draws: tuple[str, Call] | None = None  # random numbers that only one run draws
        self._types: Counter[tuple[str, ...]] = Counter()  # dtypes of forward results that differ
        self._results = 0  # floating-point results of forward calls
        self._optimizers: list[str] = []  # optimizer settings that differ, as sentences

    def row(self, left: Call | None, right: Call | None) -> Row:
        """Judge a pair and return its row."""
        call = left or right
        assert call is not None
        names = (left.name if left else "", right.name if right else "")
        row = Row(Outcome.unknown, call.title, *names, call.phase, call.path, self._step, self._rank)
        if left is None or right is None:
            row = dataclasses.replace(row, outcome=Outcome.only_left if left else Outcome.only_right)
            self._note_alone(row, call)
        else:
            row = self._pair(row, left, right)
        for side, call in enumerate((left, right)):
            if call:
                self._origins.add(side, call, row.outcome)
        return row

    def end(self) -> Divergence | None:
        """The first difference, once all pairs have been judged."""
        first = next((one for one in self._divergences.values() if not self._is_settled(one.row)), None)
        if first and first.calls:
            first = dataclasses.replace(first, replay=replay(*first.calls))
        if not self._exact and (first is None or first.row.left in self._late):
            first = self._gradients.divergence() or first
        if first and first.kind == "dtype":
            first = dataclasses.replace(first, what=self._type_sentence(first))
        if first and first.row.phase == "optimizer" and first.row.left.startswith("Aten.") and self._optimizers:
            first = dataclasses.replace(first, kind="argument", what=f"{first.what} {self._optimizers[0]}")
        return first

    def settled(self, rows: list[Row]) -> tuple[Row, ...]:
        """The rows, with those marked as not compared that merely compute the same result in a different way."""
        return tuple(
            dataclasses.replace(row, outcome=Outcome.unknown)
            if row.outcome is Outcome.differs and self._is_settled(row)
            else row
            for row in rows
        )

    def _is_settled(self, row: Row) -> bool:
        """Whether a row merely computes the same result in a different way."""
        is_operator = row.left.startswith(_OPERATORS)
        if row.left not in self._numbers or not (is_operator or row.left.startswith("Module.")) or self._exact:
            return False
        if row.left in self._unlike:
            return True
        place = self._belongs.get(row.left, (row.path, row.phase))
        return self._own_ways.cover(self._numbers[row.left], place, is_operator, row.left in self._other_inputs)

    def notes(self, first: Divergence | None) -> list[str]:
        """Observations that are not differences but worth reporting."""
        small = self._small if self._small and self._small is not first else None
        return [f"the effect is no larger than rounding: {small.what.rstrip('.')}"] if small else []

    def _note_alone(self, row: Row, call: Call) -> None:
        side = SIDES[row.outcome is Outcome.only_right]
        self._gradients.alone(row, call)
        self._own_ways.alone(side, call)
        if draws(call) and self._draws is None:
            self._draws = side, call

    def _pair(self, row: Row, left: Call, right: Call) -> Row:
        left, right = self._without_unrelated_gradients(left, right), called_like(left, right)
        origins = self._origins
        known = Known(
            self._exact, self._largest_gradient, self._gradients_differ,
            self._is_noise, origins.is_unused, origins.has_agreed,
        )  # fmt: skip
        judged = judge(left, right, known)
        if self._is_later and not self._exact and left.kind == "module":
            judged = without_idle_weights(judged)
        self._gradients_differ |= left.kind == "gradients" and bool(judged.error)
        self._remember_noise(left, right, judged)
        self._gradients.pair(left, right)
        if judged.computed_in and left.phase == "forward":
            self._results += 1
            self._types[judged.computed_in] += len(set(judged.computed_in)) > 1
        if left.kind == "optimizer":
            settings = "; ".join(optimizer_settings(left, right))
            self._optimizers += [f"{left.title} is called with different settings: {settings}."] if settings else []
        row = dataclasses.replace(
            row,
            outcome=judged.outcome,
            error=judged.error,
            inherited=judged.allowed.inherited if judged.allowed else None,
            allowed=judged.allowed.total if judged.allowed else None,
            details=(*judged.settings, *judged.dtypes, *([judged.nonfinite] if judged.nonfinite else [])),
        )
        if left.phase == "backward" or self._late:
            self._late.add(row.left)
        if judged.bad_inputs:
            self._other_inputs.add(left.name)
        if self._is_mispaired(left, right, judged):
            self._unlike.add(left.name)
        belongs = self._place(left, right, judged)
        place = belongs, self._own_ways.pass_of(belongs)
        if left.kind != "gradients":
            self._numbers[left.name] = self._own_ways.both(left, judged.outcome is Outcome.same, right.op)
        if place not in self._divergences and len(self._divergences) < _MAX_COMPARED:
            divergence = self._divergence(row, left, right, judged)
            if divergence:
                self._divergences[place] = divergence
                return divergence.row if divergence.row.left == row.left else row
        return row

    def _without_unrelated_gradients(self, left: Call, right: Call) -> Call:
        """The left call without gradients that were computed by unrelated calls in the right run.

        A tensor that two modules read receives the sum of their gradients. If one of them reads a copy, such as one in
        another layout, each copy receives only its own gradient.
        """
        if left.kind != "module" or left.phase != "backward" or self._exact:
            return left
        outputs = {
            place: value
            for place, value in left.outputs.items()
            if place not in right.outputs or self._origins.belong_together(value.maker, right.outputs[place].maker)
        }
        return dataclasses.replace(left, outputs=outputs)

    def _is_mispaired(self, left: Call, right: Call, judged: Judged) -> bool:
        """Whether two backward operators were paired only because neither had a better partner."""
        if left.kind != "op" or left.phase != "backward":
            return False
        inputs = [(left.inputs[place], right.inputs[place]) for place in judged.bad_inputs]
        if left.path:  # in a module that one run calls in more parts
            return left.path in self._uneven and any(one.shape != other.shape for one, other in inputs)
        if left.op == "add":  # autograd's sum of several gradients; the runs may add them in different orders
            return any(self._origins.alone(*values) for values in inputs)
        return any(self._origins.are_both_alone(*values) for values in inputs)

    def _place(self, left: Call, right: Call, judged: Judged) -> Place:
        """The module and phase that a difference belongs to."""
        if left.kind == "op" and not left.path and left.phase == "backward" and judged.bad_inputs:
            worst = judged.bad_inputs[0]
            maker = next(filter(None, self._origins.makers(left.inputs[worst], right.inputs[worst])), None)
            if maker:
                own = maker.call.path, maker.call.phase
                self._belongs[left.name] = self._belongs.get(maker.call.name, own)
        return self._belongs.get(left.name, (left.path, left.phase))

    def _divergence(self, row: Row, left: Call, right: Call, judged: Judged) -> Divergence | None:
        more = None if self._exact or judged.bad_inputs else self._extra_computation(row, left, right)
        if judged.outcome is not Outcome.differs:
            return more
        reason = explain(left, right, judged, self._origins)
        if self._small and reason.kind in ("operator", "drift") and judged.allowed and judged.allowed.inherited:
            return self._small  # the only known difference so far
        if reason.kind == "random" and self._draws:
            side, call = self._draws
            where = f" ({place})" if (place := place_of(call.stack)) else ""
            before = f"{reason.what} Before it, only the {side} run draws random numbers: {call.title}{where}."
            reason = dataclasses.replace(reason, what=before)
        return _diverge(row, left, right, reason)

    def _extra_computation(self, row: Row, left: Call, right: Call) -> Divergence | None:
        """What only one run computes before this call, if its effect exceeds rounding."""
        if has_same_result(left, right):
            return None
        for place, difference in errors(left.inputs, right.inputs):
            is_small = 0 < difference < math.inf
            reason = inserted(left, right, place, self._origins) if is_small else None
            if reason:
                divergence = _diverge(dataclasses.replace(row, outcome=Outcome.differs), left, right, reason)
                if difference > ROUNDINGS * unit([left.inputs[place], right.inputs[place]]):
                    return divergence
                self._small = self._small or divergence
        return None

    def _type_sentence(self, first: Divergence) -> str:
        (left, right), count = self._types.most_common(1)[0] if self._types else (("", ""), 0)
        types = f"{left} on the left, {right} on the right"
        share = count / max(1, self._results)
        if share > 1 / 3:
            of = f"{count:,} of {self._results:,} forward calls, from {first.row.title} on"
            return f"The whole run is computed in a different type: {types} ({of})."
        if share > 0.1:
            of = f"{count:,} of {self._results:,} forward calls"
            return f"{first.row.title} is the first of {of} that are computed in a different type: {types}."
        return first.what

    def _is_noise(self, left: Value, right: Value) -> bool:
        if left.hash and (left.hash, right.hash) in self._noise:
            return True
        return bool(left.maker) and (left.maker, right.maker) in self._noise

    def _remember_noise(self, left: Call, right: Call, judged: Judged) -> None:
        self._noise.update((left.outputs[place].hash, right.outputs[place].hash) for place in judged.noise)
        if len(judged.noise) == len(left.outputs) > 0:
            self._noise.add((left.name, right.name))


def _diverge(row: Row, left: Call, right: Call, reason: Reason) -> Divergence:
    return Divergence(
        reason.kind, row, reason.what, reason.path, place_of(left.stack), place_of(right.stack),
        left.stack or right.stack, calls=(left, right),
    )  # fmt: skip
