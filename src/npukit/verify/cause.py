"""Compare two records of operators: the first operator that computed something else, or that one run did not call."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from npukit.verify.result import OpDifference

_WINDOW = 300  # operators looked at to find where two runs meet again
_SLACK = 1e-4  # below it, devices differ by rounding


@dataclass(frozen=True)
class Called:
    op: str
    line: str
    backward: bool
    figures: tuple[float, ...] | None

    @property
    def norm(self) -> float | None:
        return self.figures[0] if self.figures else None


def read_record(path: Path) -> list[Called]:
    """What record.py wrote; a record that was cut short is read as far as it goes."""
    called = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            op, place, backward, figures = json.loads(line)
        except ValueError:
            break
        called.append(Called(op, place, backward, tuple(figures) if figures else None))
    return called


def first_cause(before: Path, after: Path, records: tuple[Path, Path], tolerance: float) -> OpDifference | None:
    """The first operator that differs between two runs of these projects."""
    lines = Lines(before, after)
    one, other = (read_record(record) for record in records)
    alone: OpDifference | None = None  # the first that one run alone called since both last computed the same
    for left, right in _pairs(one, other, lines):
        if left and right:
            if _differ(left, right, max(tolerance, _SLACK)):
                found = OpDifference("result", right.op, left.line, right.line, right.backward, left.norm, right.norm)
                return replace(alone, then=found) if alone else found
            if left.figures and right.figures:
                alone = None
        elif alone is None and (called := left or right) is not None:
            places = (called.line, lines.after(called.line)) if left else (lines.before(called.line), called.line)
            alone = OpDifference("only before" if left else "only after", called.op, *places, called.backward)
    return None


def _pairs(
    before: Sequence[Called], after: Sequence[Called], lines: Lines
) -> Iterator[tuple[Called | None, Called | None]]:
    """Walk both runs side by side; where they part, go on where they next meet."""
    ours = [(_kind(each.op), lines.after(each.line), each.backward) for each in before]
    theirs = [(_kind(each.op), each.line, each.backward) for each in after]
    i = j = 0
    while i < len(ours) and j < len(theirs):
        skip_i, skip_j = _meet(ours[i : i + _WINDOW], theirs[j : j + _WINDOW])
        yield from ((each, None) for each in before[i : i + skip_i])
        yield from ((None, each) for each in after[j : j + skip_j])
        i, j = i + skip_i, j + skip_j
        if i < len(ours) and j < len(theirs) and ours[i] == theirs[j]:
            yield before[i], after[j]
            i, j = i + 1, j + 1


def _kind(op: str) -> str:
    """One device's matmul is another's linear."""
    return "mm" if op in ("addmm", "linear", "matmul", "bmm", "baddbmm") else op


def _meet(ours: Sequence[object], theirs: Sequence[object]) -> tuple[int, int]:
    """How much of each to skip so that both go on with the same; all of it where they never do."""
    for total in range(len(ours) + len(theirs) - 1):
        for skipped in range(max(0, total - len(theirs) + 1), min(total + 1, len(ours))):
            if ours[skipped] == theirs[total - skipped]:
                return skipped, total - skipped
    return len(ours), len(theirs)


def _differ(one: Called, other: Called, tolerance: float) -> bool:
    if one.figures is None or other.figures is None:
        return False
    length = max(one.figures[0], other.figures[0])
    if not math.isfinite(length):
        return not all(
            a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one.figures, other.figures, strict=True)
        )
    return any(abs(a - b) > tolerance * max(length, 1e-6) for a, b in zip(one.figures, other.figures, strict=True))


class Lines:
    """Which line of one project is which line of the other."""

    def __init__(self, before: Path, after: Path) -> None:
        self._folders = before, after
        self._files: dict[str, tuple[dict[int, int], dict[int, int]]] = {}

    def after(self, place: str) -> str:
        return self._moved(place, 0)

    def before(self, place: str) -> str:
        return self._moved(place, 1)

    def _moved(self, place: str, way: int) -> str:
        file, _, line = place.rpartition(":")
        if not file:
            return place
        if file not in self._files:
            self._files[file] = self._align(file)
        return f"{file}:{self._files[file][way].get(int(line), int(line))}"

    def _align(self, file: str) -> tuple[dict[int, int], dict[int, int]]:
        texts = [(folder / file).read_text(errors="replace").splitlines() if (folder / file).is_file() else []
                 for folder in self._folders]  # fmt: skip
        there: dict[int, int] = {}
        for tag, i, i_end, j, j_end in difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
            for line in range(i, i_end):
                if tag == "equal" or (tag == "replace" and i_end - i == j_end - j):
                    there[line + 1] = line - i + j + 1
                elif tag == "replace":
                    there[line + 1] = j + _most_alike(texts[0][line], texts[1][j:j_end]) + 1
        return there, {right: left for left, right in there.items()}


def _most_alike(line: str, others: Sequence[str]) -> int:
    ratios = [difflib.SequenceMatcher(None, line, other, autojunk=False).quick_ratio() for other in others]
    return ratios.index(max(ratios))
