"""The figures of a run's log.jsonl, read incrementally and thinned in a way that keeps spikes visible."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

POINTS = 600  # of a curve; each is the lowest and the highest value of some steps
PIECE = 1 << 18  # bytes that are parsed at a time
REST = 0.02  # seconds between two of them in the background, so that requests are answered meanwhile
KEPT = 64  # runs whose curves stay in memory
LONG = 4 << 20  # bytes of a log that takes a while to read
TAIL = 4096  # bytes that are searched for the last step and evaluation
LATER = 0.3  # seconds until it is read, so that the first answer comes sooner
SAMPLES, SAMPLE = 250, 1500  # pieces of it, and their bytes
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
        points: dict[int, float] = {}
        for _, low_step, low, high_step, high in self.points:
            points |= {low_step: low, high_step: high}
        if self.last:
            points[self.last[0]] = self.last[1]
        steps = sorted(points)
        return steps, [points[step] for step in steps]


class Figures:
    """All curves of one log, as far as it has been read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self.curves: dict[str, Curve] = {}
        self.last: Row = {}
        self.was_read = False
        self.lock = threading.Lock()

    def update(self, rest_between: float = 0.0) -> None:
        """Read the lines that were added; a rewritten log is read from its beginning."""
        with self.lock, contextlib.suppress(FileNotFoundError), self._file.open("rb") as log:
            status = os.fstat(log.fileno())
            if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
                self._identity, self._offset = (status.st_dev, status.st_ino), 0
                self.curves, self.last = {}, {}
            group = _group(status.st_size) if not self._offset else 1
            log.seek(self._offset)
            rest = b""
            while piece := log.read(PIECE):
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                self._offset = log.tell() - len(rest)
                self.add(list(_rows(lines)), group)
                time.sleep(rest_between)
            self.was_read = True

    def add(self, rows: list[Row], group: int = 1) -> None:
        """Add rows; `group` of them become a point at once."""
        for at in range(0, len(rows), group):
            some = rows[at : at + group]
            keys = some[0].keys()
            others = [row for row in some if row.keys() != keys]  # evaluations, checkpoints, notes
            alike = [row for row in some if row.keys() == keys] if others else some
            for name in keys:
                if name not in NOT_CURVES:
                    self._add_curve(name, alike)
            for row in others:
                for name in row.keys() - set(NOT_CURVES):
                    self._add_curve(name, [row])
        trained = [row for row in rows[-50:] if "loss" in row]
        self.last = trained[-1] if trained else self.last

    def _add_curve(self, name: str, rows: list[Row]) -> None:
        values = [row[name] for row in rows]
        steps = [row["step"] for row in rows]
        try:
            usable = math.isfinite(sum(values))
        except TypeError:  # null, or NaN as text
            usable = False
        if not usable:
            kept = [(step, value) for step, value in zip(steps, values, strict=True) if _is_number(value)]
            steps, values = [step for step, _ in kept], [value for _, value in kept]
        if values:
            self.curves.setdefault(name, Curve()).add(steps, values)


class Logs:
    """The figures of the most recently viewed runs."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, Figures] = OrderedDict()
        self._lock = threading.Lock()
        self._reader = threading.Timer(0, lambda: None)  # reads long logs

    def figures(self, file: Path) -> Figures:
        """The current figures; those of a sample while a long log is read for the first time.

        >>> Logs().figures(Path("run/log.jsonl")).curves["loss"].pairs()
        ([1, 2, 10], [3.2, 3.1, 2.8])
        """
        with self._lock:
            figures = self._known.setdefault(file, Figures(file))
            self._known.move_to_end(file)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
            if not figures.was_read and file.is_file() and file.stat().st_size > LONG:
                if not self._reader.is_alive():  # one at a time
                    self._reader = threading.Timer(LATER, figures.update, [REST])
                    self._reader.daemon = True
                    self._reader.start()
                return sample(file)
        figures.update()
        return figures


def sample(file: Path) -> Figures:
    """Figures from pieces of a log, at equal distances."""
    figures = Figures(file)
    with file.open("rb") as log:
        size = os.fstat(log.fileno()).st_size
        for number in range(SAMPLES):
            log.seek(number * (size - SAMPLE) // (SAMPLES - 1))
            lines = log.read(SAMPLE).split(b"\n")
            figures.add(list(_rows(lines[bool(number) : -1])))
    return figures


def between(file: Path, first: int, last: int) -> Figures:
    """Figures of some steps, with as many points as the whole curve would have.

    >>> between(Path("run/log.jsonl"), 500, 600).curves["loss"].pairs()[0][0]
    500
    """
    figures = Figures(file)
    with contextlib.suppress(FileNotFoundError), file.open("rb") as log:
        start, end = _offset(log, first), _offset(log, last + 1)
        log.seek(start)
        rest = b""
        for size in _sizes(end - start):
            lines = (rest + log.read(size)).split(b"\n")
            rest = lines.pop()
            figures.add([row for row in _rows(lines) if first <= row["step"] <= last], _group(end - start))
    return figures


def _group(size: int) -> int:
    """How many rows become a point at once, for a log of this size."""
    return max(1, size // (200 * 2 * POINTS))


def _sizes(size: int) -> Iterator[int]:
    while size > 0:
        yield min(size, PIECE)
        size -= PIECE


def _offset(log: BinaryIO, step: int) -> int:
    """Where the first line of this step or a later one begins; steps ascend in a log."""
    low, high = 0, os.fstat(log.fileno()).st_size
    while low < high:  # lines before `low` are of earlier steps, lines from `high` on are not
        middle = (low + high) // 2
        log.seek(max(0, middle - 1))
        if middle:
            log.readline()
        begin = log.tell()
        row = next(_rows([log.readline()]), None) if begin < high else None
        if row is not None and row["step"] < step:
            low = log.tell()
        else:
            high = middle
    return low


def tail(file: Path) -> Row:
    """The last logged step of a run and its last evaluation, from the end of the log."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL))
            lines = log.read().split(b"\n")
    except OSError:
        return {}
    last: Row = {}
    for row in _rows(lines):
        if "loss" in row:
            last |= row
        elif "eval_loss" in row:
            last["eval_loss"] = row["eval_loss"]
    return last


def _rows(lines: list[bytes]) -> Iterator[Row]:
    """The rows of complete lines; invalid lines are skipped."""
    try:
        rows = json.loads(b"[" + b",".join(line for line in lines if line) + b"]")
    except (ValueError, RecursionError):
        rows = [_row(line) for line in lines]
    for row in rows:
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def _row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
