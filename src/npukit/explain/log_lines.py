"""Read logs of any size window by window: select the lines worth reading, and find their rank and time.

Logs are long and repetitive. Of lines that differ only in numbers, the words of the first are read, and of the others
only the numbers, if they may be codes.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

WINDOW = 8 * 2**20
ANSI_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
RANK_IN_LINE = re.compile(r"\[(?:rank|default)\s?(\d+)\]|\bRankID:(\d+)", re.IGNORECASE)
# torchrun writes N/stdout.log and N/stderr.log; the numbers in names of CANN's plogs are process ids and times.
RANK_IN_NAME = re.compile(
    r"rank[_.-]?(\d{1,5})(?!\d)|(?:^|[/_.-])(\d{1,5})[/_.-](?:stdout|stderr|std)\b", re.IGNORECASE
)
DATE_TIME = re.compile(r"\b(?:\d{4}[-/])?(\d\d)[-/](\d\d)(?:/\d{4})?[ T-](\d\d:\d\d:\d\d)(?:[.,](\d{3})\.?(\d{3})?)?")
GLOG_TIME = re.compile(r"\b[IWEF](?:\d{4})?(\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{6})")
# torchrun's final report of the rank that failed first.
FIRST_FAILED = re.compile(rb"first observed failure\)(?:[^\n]*\n){1,6}?[^\n]*?\brank +: +(\d+)")
NUMBERS_MATTER = re.compile(
    "(?i:err|code|ret|result)|错误|返回|[EW][A-Z0]0000|^\\s*000000\\s*$".encode()
)  # 0 stands for any digit
ZEROS = bytes.maketrans(b"123456789", b"000000000")
LONGEST_LINE = 10_000
LINES_NEAR = 200  # how far from a line to look for its timestamp
MOST_REMEMBERED = 200_000  # lines; repetitive output repeats itself sooner


@dataclass(frozen=True)
class LogLine:
    """A line of a log; `time` is sortable text, empty if the log has no timestamps."""

    text: str
    number: int
    time: str
    rank: int | None


@dataclass(frozen=True)
class Window:
    """Some lines of a log: `worth` are to be searched for numbers, `new` for words; the others only provide times."""

    source: str
    first: int  # the number of the first line, from 1
    before: Sequence[bytes]
    lines: Sequence[bytes]
    after: Sequence[bytes]
    worth: Sequence[int]
    new: Sequence[int]

    def text(self, index: int) -> str:
        return self.lines[index][:LONGEST_LINE].decode(errors="replace")

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, if a launcher reports it."""
        summary = next((index for index, line in enumerate(self.lines) if b"first observed failure" in line), None)
        if summary is None:
            return None
        match = FIRST_FAILED.search(b"\n".join([*self.lines[summary : summary + 8], b""]))
        return int(match[1]) if match else None

    def line(self, index: int) -> LogLine:
        """The line at an index, with the information in it and its surroundings."""
        text = self.text(index)
        rank = RANK_IN_LINE.search(text) or RANK_IN_NAME.search(self.source)
        number = next((int(group) for group in rank.groups() if group is not None), None) if rank else None
        return LogLine(text.strip(), self.first + index, self._time_near(index), number)

    def _time_near(self, index: int) -> str:
        # Some components log whole seconds: the latest time so far keeps the lines of one log in order.
        before = [*self.before, *self.lines[max(0, index - LINES_NEAR) : index + 1]][-LINES_NEAR - 1 :]
        if time := max(map(_time, before)):
            return time
        after = [*self.lines[index + 1 : index + LINES_NEAR], *self.after][:LINES_NEAR]
        return next((time for line in after if (time := _time(line))), "")


def windows(source: str, stream: BinaryIO) -> Iterator[Window]:
    """The whole log, in windows that fit into memory."""
    seen: dict[bytes, bool] = {}
    first, before, lines = 1, list[bytes](), list[bytes]()
    for block in _blocks(stream):
        if lines:
            yield Window(source, first, before, lines, block[:LINES_NEAR], *_worth_reading(lines, seen))
        first, before, lines = first + len(lines), [*before, *lines][-LINES_NEAR:], block
    if lines:
        yield Window(source, first, before, lines, (), *_worth_reading(lines, seen))


def _blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a log in UTF-8 without colours, in blocks that end at a line break."""
    rest = b""
    decoder: codecs.IncrementalDecoder | None = None
    data = stream.read(WINDOW)
    if (encoding := _encoding(data)) != "utf-8":
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while data:
        following = stream.read(WINDOW)
        if decoder:
            data = decoder.decode(data).encode(errors="replace")
        data = rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1 if following else len(data)
        if not cut and len(data) > WINDOW:
            cut = len(data)
        if cut:
            yield _lines(data[:cut])
        rest = data[cut:]
        data = following


def _encoding(data: bytes) -> str:
    """UTF-8, or UTF-16, which PowerShell writes."""
    start = data[:2000]
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if start.count(0) * 3 > len(start):  # every other byte of Latin text is zero
        return "utf-16-le" if start[1::2].count(0) > start[::2].count(0) else "utf-16-be"
    return "utf-8"


def _lines(data: bytes) -> list[bytes]:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\x1b" in data:
        data = ANSI_COLOUR.sub(b"", data)
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _worth_reading(lines: Sequence[bytes], seen: dict[bytes, bool]) -> tuple[list[int], list[int]]:
    """The lines worth reading, and those among them with a new shape."""
    shapes = b"\n".join(lines).translate(ZEROS).split(b"\n")
    worth, new = list[int](), list[int]()
    for index, shape in enumerate(shapes):
        numbers_matter = seen.get(shape)
        if numbers_matter is None:
            if len(seen) > MOST_REMEMBERED:
                seen.clear()
            numbers_matter = seen[shape] = bool(NUMBERS_MATTER.search(shape))
            new.append(index)
        elif not numbers_matter or lines[index] in seen:
            continue
        if numbers_matter:
            seen[lines[index]] = False
        worth.append(index)
    return worth, new


def _time(raw: bytes) -> str:
    line = raw[:LONGEST_LINE].decode(errors="replace")
    if match := DATE_TIME.search(line):
        month, day_of_month, clock, milli, micro = match.groups()
        return f"{month}-{day_of_month} {clock}.{milli or '000'}{micro or '000'}"
    if match := GLOG_TIME.search(line):
        month, day_of_month, clock, fraction = match.groups()
        return f"{month}-{day_of_month} {clock}.{fraction}"
    return ""
