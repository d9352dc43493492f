"""Read logs: their lines, with the rank and the time that each tells."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
RANK_IN_LINE = re.compile(r"\[(?:rank|default)\s?(\d+)\]|\bRankID:(\d+)|\brank[ :=]+(\d+)\b", re.IGNORECASE)
RANK_IN_NAME = re.compile(r"rank[_.-]?(\d+)|(?:^|[/_.-])(\d+)[/_.-](?:stdout|stderr|std|log)", re.IGNORECASE)
DATE_TIME = re.compile(r"\b\d{4}-(\d\d-\d\d)[ T-](\d\d:\d\d:\d\d)(?:[.,](\d{3})\.?(\d{3})?)?")
GLOG_TIME = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{6})")


@dataclass(frozen=True)
class LogLine:
    """A line of a log; `time` is the last one told up to here (sortable text, empty before the first)."""

    text: str
    number: int
    order: int  # over all logs
    time: str
    source: str
    rank: int | None


def lines_of(logs: Mapping[str, str]) -> Iterator[LogLine]:
    """Every line that says something, log after log."""
    order = 0
    for source, text in logs.items():
        in_name = RANK_IN_NAME.search(source)
        rank_of_log = _number(in_name) if in_name else None
        time = ""
        for number, raw in enumerate(text.splitlines(), 1):
            line = ANSI_COLOUR.sub("", raw)
            if not line.strip():
                continue
            order += 1
            time = _time(line) or time
            in_line = RANK_IN_LINE.search(line)
            yield LogLine(line, number, order, time, source, _number(in_line) if in_line else rank_of_log)


def _number(match: re.Match[str]) -> int:
    return int(next(group for group in match.groups() if group is not None))


def _time(line: str) -> str:
    if match := DATE_TIME.search(line):
        day, clock, milli, micro = match.groups()
        return f"{day} {clock}.{milli or '000'}{micro or '000'}"
    if match := GLOG_TIME.search(line):
        month, day_of_month, clock, fraction = match.groups()
        return f"{month}-{day_of_month} {clock}.{fraction}"
    return ""
