"""Find known errors in text and say what they mean. Nothing is asked of the network or of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npukit.doctor.error_codes import codes_in, composed
from npukit.doctor.log_lines import LogLine, lines_of
from npukit.facts.errors import KnownError, known_errors

ORDER = {"cause": 0, "general": 1, "consequence": 2}


@dataclass(frozen=True)
class Explanation:
    """What one error means, where it was first seen, why it comes and what to do."""

    code: str
    name: str
    meaning: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    kind: str  # cause, general, or consequence: then something else, perhaps on another rank, came first
    line: str  # the first line that shows it
    number: int  # of that line, from 1
    source: str = ""  # the log that it is in, where there are several
    rank: int | None = None  # where the line or the log's name tells


def explain(text: str) -> list[Explanation]:
    """The errors known in `text`, each once, the one to begin with first; empty when none is known.

    >>> explain("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")[0].code
    'out-of-memory'
    """
    return explain_logs({"": text})


def explain_logs(logs: Mapping[str, str]) -> list[Explanation]:
    """The same over the logs of several ranks: the earliest cause comes first, what only followed from it last.

    >>> explain_logs({"rank0.log": "... EI0002 ...", "rank1.log": "... NPU out of memory ..."})[0].source
    'rank1.log'
    """
    found: dict[str, tuple[tuple[int, str, int], Explanation]] = {}
    for line in lines_of(logs):
        for error in _errors_in(line.text):
            explanation = _explanation(error, line)
            place = (ORDER[error.kind], line.time, line.order)
            if error.code not in found or place < found[error.code][0]:
                found[error.code] = (place, explanation)
    return [explanation for _, explanation in sorted(found.values(), key=lambda each: each[0])]


def first_error_line(text: str) -> str | None:
    """The first line of `text` that tells of an error, known or not: what to show when nothing can be explained."""
    last_of_traceback = re.compile(r"(?:\[rank\d+\]:\s*)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
    patterns = (last_of_traceback, re.compile(r"\b(?:ERROR|FATAL|CRITICAL)\b|\berror:", re.IGNORECASE))
    lines = text.splitlines()
    for pattern in patterns:
        for line in lines:
            if pattern.match(line) if pattern is last_of_traceback else pattern.search(line):
                return line.strip()
    return None


def _errors_in(line: str) -> Iterator[KnownError]:
    known = known_errors()
    for code in codes_in(line):
        if code in known:
            yield known[code]
        elif error := composed(code):
            yield error
    for pattern, error in _phrases():
        if pattern.search(line):
            yield error


def _phrases() -> list[tuple[re.Pattern[str], KnownError]]:
    global _compiled
    if not _compiled:
        _compiled = [(re.compile(e.pattern), e) for e in known_errors().values() if e.pattern]
    return _compiled


_compiled: list[tuple[re.Pattern[str], KnownError]] = []


def _explanation(error: KnownError, line: LogLine) -> Explanation:
    return Explanation(
        error.code,
        error.name,
        error.meaning,
        error.causes,
        error.remedies,
        error.kind,
        line.text.strip(),
        line.number,
        line.source,
        line.rank,
    )
