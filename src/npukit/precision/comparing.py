"""Compare two dumps: align their rows, judge each, and find the first place where the runs part."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from npukit.errors import NpukitError
from npukit.precision.align import align
from npukit.precision.causes import causes_of
from npukit.precision.dump import Call, Dump, Value
from npukit.precision.judge import Judged, draws, judge
from npukit.precision.reading.find import find_dumps, read
from npukit.precision.replay import replay
from npukit.precision.result import Comparison, Divergence, Kind, Outcome, Row

_Seen = tuple[Call, Outcome]
_FRAME = re.compile(r"File (?P<file>.+), line (?P<line>\d+), in (?P<name>[^,]+)")


def compare(left: Path, right: Path, rename: Mapping[str, str] | None = None, exact: bool = False) -> Comparison:
    """Compare all steps and ranks that two dumps have in common; with `exact`, every bit counts.

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
    first: Divergence | None = None
    for step, rank in both:
        dumps = read(ours[step, rank], step), read(theirs[step, rank], step)
        compared = compare_dumps(*dumps, rename, step, rank, exact)
        rows += compared.rows
        renames.update(compared.renames)
        first = first or compared.first
    counts = Counter(row.outcome.value for row in rows)
    if not counts[Outcome.same.value] + counts[Outcome.differs.value]:
        raise NpukitError(f"{left} and {right} have no row in common: are they dumps of the same model and level?")
    notes = [
        f"step {step}, rank {rank} is only in {left if (step, rank) in ours else right}"
        for step, rank in sorted(ours.keys() ^ theirs.keys())
    ]
    return Comparison(str(left), str(right), first, dict(counts), renames, tuple(notes), tuple(rows))


def compare_dumps(
    left: Dump,
    right: Dump,
    rename: Mapping[str, str] | None = None,
    step: int = 0,
    rank: int = 0,
    exact: bool = False,
) -> Comparison:
    """Compare one step of one process with one of another.

    >>> compare_dumps(read(a), read(b)).coverage
    1.0
    """
    aligned = align(left.calls, right.calls, rename)
    largest = max(
        (value.norm or 0.0 for call in left.calls if call.kind == "gradients" for value in call.outputs.values()),
        default=0.0,
    )
    walk = _Walk(step, rank, largest, exact)
    rows = tuple(walk.row(one, other) for one, other in aligned.pairs)
    counts = Counter(row.outcome.value for row in rows)
    first = walk.first
    if first:
        one, other = walk.suspects
        replayed = replay(one, other) if one and other else None
        first = dataclasses.replace(first, causes=causes_of(first, walk.suspects), replay=replayed)
    return Comparison(str(left.file), str(right.file), first, dict(counts), aligned.renames, (), rows)


def _list(dumps: Mapping[tuple[int, int], Path]) -> str:
    shown = [f"{step}/{rank}" for step, rank in sorted(dumps)[:4]]
    return ", ".join(shown) + (" …" if len(dumps) > 4 else "")


class _Walk:
    """Judges pairs in their order, and remembers what became of each."""

    def __init__(self, step: int, rank: int, largest_gradient: float, exact: bool = False) -> None:
        self.first: Divergence | None = None
        self.suspects: tuple[Call | None, Call | None] = (None, None)
        self._step, self._rank, self._largest_gradient, self._exact = step, rank, largest_gradient, exact
        self._seen: tuple[dict[str, _Seen], dict[str, _Seen]] = ({}, {})  # by row, and by hash of what it made
        self._gradients_differ = False  # at all, be it by rounding
        self._noise: set[tuple[str, str]] = set()  # hashes, and rows that made nothing else

    def row(self, left: Call | None, right: Call | None) -> Row:
        call = left or right
        assert call is not None
        names = (left.name if left else "", right.name if right else "")
        row = Row(Outcome.unknown, call.title, *names, call.phase, call.path, self._step, self._rank)
        if left is None or right is None:
            outcome = Outcome.only_left if left else Outcome.only_right
            row = dataclasses.replace(row, outcome=outcome)
        else:
            judged = judge(left, right, self._largest_gradient, self._is_noise, self._exact, self._gradients_differ)
            self._gradients_differ |= left.kind == "gradients" and bool(judged.error)
            self._remember_noise(left, right, judged)
            row = dataclasses.replace(
                row,
                outcome=judged.outcome,
                error=judged.error,
                inherited=judged.allowed.inherited if judged.allowed else None,
                allowed=judged.allowed.total if judged.allowed else None,
                details=(*judged.settings, *judged.dtypes, *([judged.nonfinite] if judged.nonfinite else [])),
            )
            if judged.outcome is Outcome.differs and self.first is None:
                self.first = self._divergence(row, left, right, judged)
                self.suspects = left, right
        for seen, side in zip(self._seen, (left, right), strict=True):
            if side:
                seen[side.name] = side, row.outcome
                seen.update({value.hash: (side, row.outcome) for value in side.outputs.values() if value.hash})
        return row

    def _is_noise(self, left: Value, right: Value) -> bool:
        if left.hash and (left.hash, right.hash) in self._noise:
            return True
        return bool(left.maker) and (left.maker, right.maker) in self._noise

    def _remember_noise(self, left: Call, right: Call, judged: Judged) -> None:
        self._noise.update((left.outputs[place].hash, right.outputs[place].hash) for place in judged.noise)
        if len(judged.noise) == len(left.outputs) > 0:
            self._noise.add((left.name, right.name))

    def _divergence(self, row: Row, left: Call, right: Call, judged: Judged) -> Divergence:
        kind, what = self._explain(left, right, judged)
        return Divergence(kind, row, what, place_of(left.stack), place_of(right.stack), left.stack or right.stack)

    def _explain(self, left: Call, right: Call, judged: Judged) -> tuple[Kind, str]:
        if judged.bad_inputs:
            return self._explain_input(left, right, judged.bad_inputs[0])
        output = f"output {judged.worst}" if judged.worst[:1].isdigit() else judged.worst
        size = f"by {judged.error:.2g} relative" if judged.error not in (None, float("inf")) else "in kind"
        title = left.title
        if left.kind == "module" and judged.worst in right.outputs:
            makers = self._makers(left.outputs[judged.worst], right.outputs[judged.worst])
            if alone := _made_alone(makers):
                return "missing", f"{output} of {title} differs: {alone}."
        if judged.nonfinite:
            return "nonfinite", f"{title} returns {judged.nonfinite}, from inputs that agree."
        if judged.dtypes:
            return "dtype", f"{title} is computed in another type: {judged.dtypes[0]}."
        if draws(left):
            return "random", f"{title} draws other random numbers on each side."
        if judged.settings:
            return "argument", f"{title} is called with other settings: {'; '.join(judged.settings)}."
        if judged.error == float("inf"):
            return "shape", f"{title}: {output} has other shapes or values on each side, from inputs that agree."
        if left.kind == "gradients":
            return "operator", f"{title}: {judged.worst} differs {size}{self._last_writers(left, right, judged.worst)}."
        allowed = judged.allowed
        if allowed is None or not allowed.is_grown:
            return "operator", f"{title}: {'inputs agree, ' if left.inputs else ''}{output} differs {size}."
        if judged.error is not None and judged.error <= 16 * allowed.inherited:
            return (
                "drift",
                f"The error grew gradually and exceeds what rounding explains at {title}; no single call is to blame.",
            )
        return "operator", f"{title}: inputs agree within {allowed.inherited:.2g}, {output} differs {size}."

    def _last_writers(self, left: Call, right: Call, place: str) -> str:
        """Who wrote to an output last, where that is not the same on both sides."""
        makers = [seen.get(call.outputs[place].maker) for seen, call in zip(self._seen, (left, right), strict=True)]
        names = [call.outputs[place].maker.rsplit(".", 2)[0] for call in (left, right)]
        if names[0] == names[1] or not all(names):
            return ""
        titles = [maker[0].title if maker else name for maker, name in zip(makers, names, strict=True)]
        return f"; it was written last by {titles[0]} on the left and by {titles[1]} on the right"

    def _makers(self, *values: Value) -> list[_Seen | None]:
        """Who made a tensor in the left run, and in the right."""
        return [_maker(seen, value) for seen, value in zip(self._seen, values, strict=True)]

    def _explain_input(self, left: Call, right: Call, place: str) -> tuple[Kind, str]:
        title = f"input {place}" if place[:1].isdigit() else place
        makers = self._makers(left.inputs[place], right.inputs[place])
        if alone := _made_alone(makers):
            return "missing", f"{title} of {left.title} differs: {alone}."
        maker = makers[0] or makers[1]
        if maker is None:
            return self._explain_source(left, place, title)
        return "between", (
            f"{title} of {left.title} differs although {maker[0].title}, which made it, agreed: something between them "
            "changed it (a copy, a missing synchronisation, or code outside torch)."
        )

    def _explain_source(self, left: Call, place: str, title: str) -> tuple[Kind, str]:
        if place.startswith("parameters."):
            return "source", f"{title} of {left.title} already differs: the weights are not the same on both sides."
        if left.kind == "module" and left.phase == "backward":
            return "outside", (
                f"The gradient that reaches {left.title} already differs: the loss, or other code outside of modules "
                "that uses its output, is not the same. Capture with --level ops to see it."
            )
        if left.kind == "module" and left.path:
            return "outside", (
                f"{title} of {left.title} already differs, and no module made it: code between modules did. "
                "Capture with --level ops to see it."
            )
        return "source", f"{title} of {left.title} already differs, and no recorded call made it: the data differ."


def _maker(seen: Mapping[str, _Seen], value: Value) -> _Seen | None:
    """The call that computed a tensor; what only copied it, as to another device, is passed over."""
    maker = seen.get(value.maker) or seen.get(value.hash)
    while maker and "copy" in maker[0].op and value.hash:
        source = next((given for given in maker[0].inputs.values() if given.hash == value.hash), None)
        if source is None:
            break
        maker = seen.get(source.maker)
    return maker


def _made_alone(makers: Sequence[_Seen | None]) -> str:
    """That a tensor was made by a call of one run alone, in words; empty where it was not."""
    for maker, side in zip(makers, ("left", "right"), strict=True):
        if maker and maker[1] in (Outcome.only_left, Outcome.only_right):
            place = place_of(maker[0].stack)
            return f"it comes from {maker[0].title}, which ran on the {side} only{f' ({place})' if place else ''}"
    return ""


def place_of(stack: Sequence[str]) -> str:
    """The innermost line of a stack that is not in an installed package, else the innermost.

    >>> place_of(["File /a/site-packages/x.py, line 1, in f, \\n y", "File train.py, line 7, in main, \\n z"])
    'train.py:7'
    """
    frames = [match for frame in stack if (match := _FRAME.match(frame))]
    own = [match for match in frames if "site-packages" not in match["file"] and "dist-packages" not in match["file"]]
    chosen = next(iter(own or frames), None)
    return f"{chosen['file']}:{chosen['line']}" if chosen else ""
