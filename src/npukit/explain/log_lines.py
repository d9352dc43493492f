"""Read logs: which line an offset lies in, with the rank and the time that it tells.

Logs are long and repeat themselves: of lines that differ in their numbers only, the first is read, unless the numbers
may be codes.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
RANK_IN_LINE = re.compile(r"\[(?:rank|default)\s?(\d+)\]|\bRankID:(\d+)", re.IGNORECASE)
RANK_IN_NAME = re.compile(r"rank[_.-]?(\d+)|(?:^|[/_.-])(\d+)[/_.-](?:stdout|stderr|std|log)", re.IGNORECASE)
DATE_TIME = re.compile(r"\b\d{4}-(\d\d-\d\d)[ T-](\d\d:\d\d:\d\d)(?:[.,](\d{3})\.?(\d{3})?)?")
GLOG_TIME = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{6})")
NUMBERS_MATTER = re.compile(r"(?i:err|code|ret|result|错误|返回)|[EW][A-Z0]0000|^\s*000000\s*$")  # 0 is any digit
ZEROS = dict.fromkeys(map(ord, "123456789"), "0")
LONGEST_LINE = 10_000
LINES_NEAR = 200  # how far from a line to look for the time it was written at


@dataclass(frozen=True)
class LogLine:
    """A line of a log; `time` is sortable text, empty where the log tells none."""

    text: str
    number: int
    time: str
    rank: int | None


class Log:
    """A log's text, without colours and without what it repeats."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self._lines = [line[:LONGEST_LINE] for line in ANSI_COLOUR.sub("", text).split("\n")]
        self._read = list(_worth_reading(self._lines))
        self.text = "\n".join(self._lines[index] for index in self._read)
        self._starts = [0]
        for index in self._read:
            self._starts.append(self._starts[-1] + len(self._lines[index]) + 1)

    def line_at(self, offset: int) -> LogLine:
        """The line that the character at `offset` is in."""
        index = self._read[bisect.bisect_right(self._starts, offset) - 1]
        line = self._lines[index]
        rank = RANK_IN_LINE.search(line) or RANK_IN_NAME.search(self.source)
        number = next((int(group) for group in rank.groups() if group is not None), None) if rank else None
        return LogLine(line.strip(), index + 1, self._time_near(index), number)

    def _time_near(self, index: int) -> str:
        # Some parts write whole seconds: the latest time so far keeps the lines of one log in their order.
        before = max(map(_time, self._lines[max(0, index - LINES_NEAR) : index + 1]))
        after = self._lines[index + 1 : index + LINES_NEAR]
        return before or next((time for line in after if (time := _time(line))), "")


def decode(data: bytes) -> str:
    """A log's bytes as text: UTF-8 as far as it is that, or UTF-16, which PowerShell writes.

    >>> decode("Fehler: ü".encode("utf-16"))
    'Fehler: ü'
    """
    start = data[:2000]
    encoding = "utf-8"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif start.count(0) * 3 > len(start):  # every other byte of Latin letters
        encoding = "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"
    return data.decode(encoding, errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _worth_reading(lines: Sequence[str]) -> Iterator[int]:
    seen: dict[str, bool] = {}
    for index, line in enumerate(lines):
        shape = line.translate(ZEROS)
        numbers_matter = seen.get(shape)
        if numbers_matter is None:
            seen[shape] = bool(NUMBERS_MATTER.search(shape))
        if numbers_matter is not False:
            yield index


def _time(line: str) -> str:
    if match := DATE_TIME.search(line):
        day, clock, milli, micro = match.groups()
        return f"{day} {clock}.{milli or '000'}{micro or '000'}"
    if match := GLOG_TIME.search(line):
        month, day_of_month, clock, fraction = match.groups()
        return f"{month}-{day_of_month} {clock}.{fraction}"
    return ""
