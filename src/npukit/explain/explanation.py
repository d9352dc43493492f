"""Find known errors in text and say what they mean. Nothing is asked of the network or of the machine."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npukit.explain.codes import codes_in, composed
from npukit.explain.log_lines import Log
from npukit.facts.errors import Kind, KnownError, known_errors

ORDER = {"cause": 0, "general": 1, "consequence": 2, "wrapper": 3}
LAST_OF_TRACEBACK = re.compile(
    r"^(?:\[rank\d+\]:\s*)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::.*)?$", re.MULTILINE
)
TOLD_AS_ERROR = re.compile(r"^.*(?:\[(?:ERROR|FATAL)\]|\b(?:ERROR|FATAL|CRITICAL)\b|\berror:).*$", re.MULTILINE)


@dataclass(frozen=True)
class Explanation:
    """What one error means, where it was first seen, why it comes and what to do."""

    code: str
    name: str
    meaning: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    kind: Kind  # of a consequence: something else, perhaps on another rank, came first
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
    found: dict[str, tuple[tuple[int, str, int, int], Explanation]] = {}
    for order, log in enumerate(Log(source, text) for source, text in logs.items()):
        for error, offset in _errors_in(log.text):
            line = log.line_at(offset)
            place = (ORDER[error.kind], line.time, order, line.number)
            if error.code not in found or place < found[error.code][0]:
                found[error.code] = (
                    place,
                    Explanation(
                        **{
                            name: getattr(error, name)
                            for name in ("code", "name", "meaning", "causes", "remedies", "kind")
                        },
                        line=line.text,
                        number=line.number,
                        source=log.source,
                        rank=line.rank,
                    ),
                )
    return [explanation for _, explanation in sorted(found.values(), key=lambda each: each[0])]


def first_error_line(text: str) -> str | None:
    """The first line of `text` that tells of an error, known or not: what to show when nothing can be explained."""
    match = LAST_OF_TRACEBACK.search(text) or TOLD_AS_ERROR.search(text)
    return match[0].strip() if match else None


def _errors_in(text: str) -> Iterator[tuple[KnownError, int]]:
    known = known_errors()
    for code, offset in codes_in(text):
        if error := known.get(code) or composed(code):
            yield error, offset
    for pattern, error in _phrases():
        if match := pattern.search(text):
            yield error, match.start()


@functools.cache
def _phrases() -> list[tuple[re.Pattern[str], KnownError]]:
    return [(re.compile(error.pattern), error) for error in known_errors().values() if error.pattern]
