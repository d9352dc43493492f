"""What `npukit profile` recorded about the script next to the trace: which lines ran when, and what they did."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from npukit.performance.read.stream import UnreadableProfile, json_whole
from npukit.spans import Spans, length, overlap, union

LINES = "lines"  # lines.rank0.json.gz, in the folder of a profile


class OperatorAtLine(NamedTuple):
    """An operator that a line calls, as observed in one step."""

    line: str
    op: str
    calls: int  # calls in the step
    constant: int  # calls whose result depends on nothing that changes between steps
    direct: bool  # called by the line itself rather than by a library
    depth: int  # the longest chain in which each call needs the one before
    loops: tuple[str, ...]  # the user's loops around it


@dataclass
class Script:
    """The user's script over time.

    >>> Script(["train.py:7"], changes=[(0, 0)]).at(5)
    'train.py:7'
    """

    lines: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)  # from this time on, this line is running
    writing: frozenset[int] = frozenset()  # lines with calls that write files
    written: list[tuple[int, int, str]] = field(default_factory=list)  # library calls that wrote files
    compiled: Spans = field(default_factory=list)  # when torch.compile was working
    loading: Spans = field(default_factory=list)  # when workers of a data loader were started or ended
    elsewhere: list[tuple[int, int, str, str]] = field(default_factory=list)  # other threads: from, until, line, text
    operators: list[OperatorAtLine] = field(default_factory=list)
    float64: list[str] = field(default_factory=list)  # lines that float64 comes from
    step_loops: frozenset[str] = frozenset()  # the loops over steps
    kept: dict[str, Any] = field(default_factory=dict)  # growth per step in nodes and bytes; variable, line

    @functools.cached_property
    def _times(self) -> list[int]:
        return [time for time, _ in self.changes]

    def at(self, time: int) -> str:
        """The line that ran at a time; empty before the first one."""
        index = bisect_right(self._times, time) - 1
        return self.lines[self.changes[index][1]] if index >= 0 else ""

    def by_line(self, spans: Spans) -> dict[str, int]:
        """How long each line ran within these intervals, the longest first."""
        total: dict[int, int] = defaultdict(int)
        for start, end in spans:
            index = max(0, bisect_right(self._times, start) - 1)
            while index < len(self.changes) and self.changes[index][0] < end:
                until = self.changes[index + 1][0] if index + 1 < len(self.changes) else end
                total[self.changes[index][1]] += max(0, min(until, end) - max(self.changes[index][0], start))
                index += 1
        return {self.lines[number]: total[number] for number in sorted(total, key=lambda number: -total[number])}

    def in_other_threads(self, spans: Spans) -> dict[str, int]:
        """How long other threads ran each line within these intervals, the longest first."""
        ran: dict[str, Spans] = defaultdict(list)
        for start, end, line, _ in self.elsewhere:
            ran[line].append((start, end))
        total = {line: length(overlap(spans, union(times))) for line, times in ran.items()}
        return {line: total[line] for line in sorted(total, key=lambda line: -total[line])}

    @functools.cached_property
    def writes(self) -> Spans:
        """When files were written."""
        own = [
            (start, end)
            for (start, number), (end, _) in zip(self.changes, self.changes[1:], strict=False)
            if number in self.writing
        ]
        return union([*own, *((start, end) for start, end, _ in self.written)])

    def text_of(self, line: str) -> str:
        if line in self.lines and self.text:
            return self.text[self.lines.index(line)]
        return next((text for _, _, other, text in self.elsewhere if other == line), "")


def read_script(folder: Path, rank: int, base: int) -> Script | None:
    """What was recorded for this rank in this folder or its parent, with times on the clock of the rank's trace."""
    for place in [folder, *folder.parents][:4]:
        if (path := place / f"{LINES}.rank{rank}.json.gz").is_file():
            try:
                return _script(json_whole(path), base)
            except (UnreadableProfile, KeyError, TypeError, ValueError):
                return None
    return None


def _script(data: dict[str, Any], base: int) -> Script:
    operators = [
        OperatorAtLine(
            row["line"], row["op"], row["calls"], row["constant"], row["direct"], row["depth"], tuple(row["loops"])
        )
        for row in data.get("operators", ())
    ]
    return Script(
        lines=[str(line) for line in data["lines"]],
        text=[str(text) for text in data["text"]],
        changes=[(int(time) - base, int(number)) for time, number in data["changes"]],
        writing=frozenset(data["writing"]),
        written=[(int(start) - base, int(end) - base, str(name)) for start, end, name in data["written"]],
        compiled=union((int(start) - base, int(end) - base) for start, end in data.get("compiled", ())),
        loading=union((int(start) - base, int(end) - base) for start, end in data.get("loading", ())),
        elsewhere=[
            (int(start) - base, int(end) - base, str(line), str(text))
            for start, end, line, text in data.get("elsewhere", ())
        ],
        operators=operators,
        float64=[str(line) for line in data.get("float64", ())],
        step_loops=frozenset(data["step_loops"]),
        kept=dict(data["kept"]),
    )
