"""The figures of a run, from log.jsonl: read once, thinned so that a spike stays to be seen, and read on from there."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POINTS = 600  # of a curve; each is the lowest and the highest value of some steps
PIECE = 1 << 20  # bytes that are parsed at a time
KEPT = 64  # runs whose curves stay in memory
NOT_CURVES = ("step", "epoch", "seconds", "seconds_left", "checkpoint", "note")
Row = dict[str, Any]


class Curve:
    """One figure over steps."""

    def __init__(self) -> None:
        self.width = 1  # steps of a point
        self.points: list[tuple[int, int, float, int, float]] = []  # number, step and value of the lowest, the highest
        self.last: tuple[int, float] | None = None

    def add(self, steps: list[int], values: list[float]) -> None:
        """Add values of ascending steps."""
        low, high = min(values), max(values)
        number = steps[0] // self.width
        self._join((number, steps[values.index(low)], low, steps[values.index(high)], high))
        self.last = (steps[-1], values[-1])
        while len(self.points) > POINTS:
            self.width *= 2
            old, self.points = self.points, []
            for point in old:
                self._join((point[1] // self.width, *point[1:]))

    def _join(self, point: tuple[int, int, float, int, float]) -> None:
        if not self.points or self.points[-1][0] != point[0]:
            self.points.append(point)
            return
        number, low_step, low, high_step, high = self.points[-1]
        if point[2] < low:
            low_step, low = point[1], point[2]
        if point[4] > high:
            high_step, high = point[3], point[4]
        self.points[-1] = (number, low_step, low, high_step, high)

    def pairs(self) -> tuple[list[int], list[float]]:
        """Steps and values, in order."""
        found: dict[int, float] = {}
        for _, low_step, low, high_step, high in self.points:
            found |= {low_step: low, high_step: high}
        if self.last:
            found[self.last[0]] = self.last[1]
        steps = sorted(found)
        return steps, [found[step] for step in steps]


class Figures:
    """All curves of one log, as far as it has been read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self.curves: dict[str, Curve] = {}
        self.events: list[Row] = []  # checkpoints and notes
        self.last: Row = {}
        self.lock = threading.Lock()

    def update(self) -> None:
        """Read what was added; a log that was written anew is read from its beginning."""
        try:
            with self._file.open("rb") as log:
                found = os.fstat(log.fileno())
                if (found.st_dev, found.st_ino) != self._identity or found.st_size < self._offset:
                    self._identity, self._offset = (found.st_dev, found.st_ino), 0
                    self.curves, self.events, self.last = {}, [], {}
                group = max(1, found.st_size // (200 * 2 * POINTS)) if not self._offset else 1
                log.seek(self._offset)
                rest = b""
                while piece := log.read(PIECE):
                    lines = (rest + piece).split(b"\n")
                    rest = lines.pop()
                    self._offset = log.tell() - len(rest)
                    self._add(list(_rows(lines)), group)
        except FileNotFoundError:
            return

    def _add(self, rows: list[Row], group: int) -> None:
        for at in range(0, len(rows), group):
            some = rows[at : at + group]
            for name in some[0]:
                if name not in NOT_CURVES:
                    self._add_curve(name, some)
            for row in some[1:]:
                if row.keys() != some[0].keys():
                    for name in row.keys() - some[0].keys() - set(NOT_CURVES):
                        self._add_curve(name, [row])
            self.events += [row for row in some if "checkpoint" in row or "note" in row][-200:]
        self.events = self.events[-500:]
        trained = [row for row in rows[-50:] if "loss" in row]
        self.last = trained[-1] if trained else self.last

    def _add_curve(self, name: str, rows: list[Row]) -> None:
        found = [(row["step"], value) for row in rows if (value := _number(row.get(name))) is not None]
        if found:
            self.curves.setdefault(name, Curve()).add([step for step, _ in found], [value for _, value in found])


class Logs:
    """The figures of the runs that were looked at last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, Figures] = OrderedDict()
        self._lock = threading.Lock()

    def figures(self, file: Path) -> Figures:
        """Up to date.

        >>> Logs().figures(Path("run/log.jsonl")).curves["loss"].pairs()
        ([1, 2, 10], [3.2, 3.1, 2.8])
        """
        with self._lock:
            found = self._known.setdefault(file, Figures(file))
            self._known.move_to_end(file)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        with found.lock:
            found.update()
        return found


def tail(file: Path, size: int = 4096) -> Row:
    """The last logged step of a run, without reading the rest."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - size))
            lines = log.read().split(b"\n")
    except OSError:
        return {}
    rows = [row for row in _rows(lines) if "loss" in row]
    return rows[-1] if rows else {}


def _rows(lines: list[bytes]) -> Iterator[Row]:
    """The rows of whole lines; a line that is none is left out."""
    try:
        found = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    except (ValueError, RecursionError):
        found = [_row(line) for line in lines]
    for row in found:
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def _row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None
