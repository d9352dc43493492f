"""Find known errors in text and explain them. Neither the network nor the machine is queried."""

from __future__ import annotations

import bisect
import functools
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import BinaryIO

from npukit.explain.codes import codes_in, composed, is_code, is_return_code
from npukit.explain.log_lines import LogLine, Window, windows
from npukit.explain.structure import named_errors_in
from npukit.explain.wrappings import BEGINS, CHAINED, Statement, statements
from npukit.facts.errors import Kind, KnownError, Strength, known_errors

ORDER = {
    "cause": 0,
    "general": 1,
    "reading": 1,
    "consequence": 2,
    "aftermath": 2,
    "class": 3,
    "unknown": 4,
    "wrapper": 5,
    "warning": 6,
    "hint": 7,
}
LAST_RESORT = ("class", "unknown", "hint")  # reported only if nothing else is
SAY_LITTLE = (*LAST_RESORT, "wrapper", "warning")
LAST_OF_TRACEBACK = re.compile(
    r"^(?:\[rank\d+\]:\s*)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::.*)?$", re.MULTILINE
)
TOLD_AS_ERROR = re.compile(
    r"^.*(?:\[(?:ERROR|FATAL|CRITICAL)\]|\b(?:ERROR|FATAL|CRITICAL)\b|\berror:|^\[?[EF]\d{4,8} \d\d:).*$", re.MULTILINE
)
# Lines that programs write during normal operation. Patterns of their content (memory, a loss) still apply to them.
INFORMATION = re.compile(
    r"^(?![^\n]*(?:(?:Error|Exception):|\[ERROR\]))"
    r"(?:[^\n]{0,70}?[\s\[(|-])?(?:(?:INFO|DEBUG|TRACE)\b|I\d{4} \d\d:\d\d:\d\d)[^\n]*$",
    re.MULTILINE,
)
# Warnings of programs that continue: what they complain about did not end them.
WARNS = re.compile(r"^(?:(?:[^\n]{0,70}?[\s\[(|-])?WARN(?:ING)?\b|(?:\S+:\d+: )?\w*Warning: )[^\n]*$", re.MULTILINE)
MINUTE = len("11-14 10:30")  # of a time
COUNTS = re.compile(r"\{[\d,]+\}")  # repetitions in a pattern
NUMBER = re.compile(r"\d")
LOOKS_LIKE_AN_ERROR = (LAST_OF_TRACEBACK, TOLD_AS_ERROR)  # the most reliable first


@dataclass(frozen=True)
class Explanation:
    """An explanation of one error: its meaning, first occurrence, causes and remedies."""

    code: str
    name: str
    meaning: str
    causes: tuple[str, ...]
    remedies: tuple[str, ...]
    kind: Kind  # a consequence: something else, perhaps on another rank, came first
    line: str  # the first line that contains it
    number: int  # the number of that line, from 1
    strength: Strength  # exact: its causes are stated; reading: inferred from `words`; nearest: a lead without causes
    words: str = ""  # the words of the line that it is inferred from
    source: str = ""  # the log that contains it, if there are several
    rank: int | None = None  # if the line or the log's name shows it

    @property
    def is_known(self) -> bool:
        """Whether the error itself is known, so that its causes may be stated.

        >>> explain("KeyError: 'colour'")[0].is_known
        False
        """
        return self.strength == "exact"


def explain(text: str) -> list[Explanation]:
    """The known errors in `text` without duplicates, the one to begin with first; empty if none is known.

    >>> explain("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")[0].code
    'out-of-memory'
    """
    return explain_logs({"": text})


def explain_logs(logs: Mapping[str, str]) -> list[Explanation]:
    """The same for the logs of several ranks: the earliest cause comes first, consequences last.

    >>> explain_logs({"rank0.log": "... EI0002 ...", "rank1.log": "... NPU out of memory ..."})[0].source
    'rank1.log'
    """
    search = Search()
    for source, text in logs.items():
        search.read(source, io.BytesIO(text.encode(errors="replace")))
    return search.explanations


class Search:
    """Searches one log after another, of any length, for errors.

    >>> search = Search()
    >>> with open("rank0.log", "rb") as log:
    ...     search.read("rank0.log", log)
    >>> search.explanations
    """

    def __init__(self) -> None:
        self._found: dict[str, _Candidate] = {}
        self._logs = 0
        self._first_failed: int | None = None  # a rank
        self._first_lines: dict[re.Pattern[str], str] = {}

    @property
    def explanations(self) -> list[Explanation]:
        """The known errors without duplicates, the one to begin with first.

        General explanations of a line are omitted if a specific message explains it, but codes are not. What a sentence
        says is reported only if nothing else explains it, and the meaning of an exception's class only if nothing else
        in the logs is known.
        """
        every = sorted(self._found.values(), key=lambda candidate: candidate.order(self._first_failed))
        causes = {candidate.statement for candidate in every if candidate.error.kind == "cause"}
        explained = {candidate.statement for candidate in every if _says_what_its_line_says(candidate.error)}
        recognised = {candidate.statement for candidate in every if candidate.error.kind not in LAST_RESORT}
        hidden_by = {
            "general": causes,
            "reading": explained,
            "aftermath": explained,
            "class": recognised,
            "unknown": recognised,
        }
        return _worth_saying(
            [
                candidate
                for candidate in every
                if is_code(candidate.error.code) or candidate.statement not in hidden_by.get(candidate.error.kind, ())
            ]
        )

    @property
    def first_error_line(self) -> str | None:
        """The first line that reports an error, known or not, to show if nothing can be explained."""
        return next(filter(None, map(self._first_lines.get, LOOKS_LIKE_AN_ERROR)), None)

    def read(self, source: str, log: BinaryIO) -> None:
        """Search a log for errors."""
        seen: set[str] = set()  # errors in this log, of which the first occurrence counts
        for window in windows(source, log):
            self._first_failed = window.first_failed if self._first_failed is None else self._first_failed
            for indices, errors_in in ((window.worth, _errors_by_number), (window.new, _errors_by_words)):
                readings = list(_readings(window, indices))
                starts = [0, *accumulate(len(reading.statement.text) + 1 for reading in readings)]
                text = "\n".join(reading.statement.text for reading in readings).replace(
                    "\uff1a", ":"
                )  # a colon in Chinese text
                for pattern in LOOKS_LIKE_AN_ERROR:
                    if pattern not in self._first_lines and (match := pattern.search(text)):
                        self._first_lines[pattern] = match[0].strip()
                for error, offset, words in errors_in(text, seen):
                    reading = readings[bisect.bisect_right(starts, offset) - 1]
                    self._note(error, window.line(reading.index), reading, source, words)
        self._logs += 1

    def _note(self, error: KnownError, line: LogLine, reading: _Reading, source: str, words: str) -> None:
        names = ("code", "name", "meaning", "causes", "remedies", "kind", "strength")
        facts = {name: getattr(error, name) for name in names}
        text = reading.statement.text.strip() if reading.of_several else line.text
        if text == error.code:
            facts["strength"] = "exact"  # for a code that is queried by itself, there is nothing else to report
        candidate = _Candidate(
            Explanation(**facts, line=text, number=line.number, words=words, source=source, rank=line.rank),
            depth=_depth(error),
            outer=reading.statement.outer,
            raised=bool(BEGINS.match(reading.statement.text)),
            time=line.time,
            statement=(self._logs, line.number, reading.part),
        )
        if error.code not in self._found or candidate.order() < self._found[error.code].order():
            self._found[error.code] = candidate


@dataclass(frozen=True)
class _Reading:
    """A statement with its position: the index of its line in the window, and its index within the line."""

    statement: Statement
    index: int
    part: int
    of_several: bool


def _readings(window: Window, indices: Sequence[int]) -> Iterator[_Reading]:
    """The statements in some lines of a window. An exception raised from the one above it is an outer one."""
    chained = False
    for index in indices:
        text = window.text(index)
        parts = [Statement(text)] if INFORMATION.match(text) else statements(text)
        for part, statement in enumerate(parts):
            chained = chained or CHAINED in statement.text
            if chained and BEGINS.match(statement.text):
                statement, chained = replace(statement, outer=True), False
            yield _Reading(statement, index, part, len(parts) > 1)


@dataclass(frozen=True)
class _Candidate:
    """An error, with what determines its rank among those found."""

    error: Explanation
    depth: int
    outer: bool
    raised: bool  # the statement begins with an exception
    time: str
    statement: tuple[int, int, int]  # indices of the log, the line and its part

    @property
    def place(self) -> tuple[str, tuple[int, int, int]]:
        """When and where it was written."""
        return self.time, self.statement

    def led_to(self, other: _Candidate) -> bool:
        """Whether it precedes another error by so much, or in another place, that they are separate messages."""
        elsewhere = (self.error.source, self.error.rank) != (other.error.source, other.error.rank)
        return self.place < other.place and (elsewhere or self.time[:MINUTE] < other.time[:MINUTE])

    def order(self, first_failed: int | None = None) -> tuple[float, int, bool, bool, object]:
        """The sort key. What an outer exception's sentence says comes after everything about the inner one."""
        kind: float = ORDER[self.error.kind]
        if self.outer and self.error.kind != "cause":
            kind = max(kind, ORDER["consequence"] + 0.5)
        elsewhere = None not in (first_failed, self.error.rank) and self.error.rank != first_failed
        return kind, self.depth, self.outer, elsewhere, self.place


def _worth_saying(candidates: Sequence[_Candidate]) -> list[Explanation]:
    """Select the errors to report, in order. Those that say little are reported only if nothing says more."""
    shown = [candidate.error for candidate in candidates]
    if any(error.kind not in (*SAY_LITTLE, "consequence") for error in shown):
        return [error for error in shown if error.kind not in LAST_RESORT]
    in_time = sorted(candidates, key=lambda candidate: candidate.place)
    followed = next((candidate for candidate in in_time if candidate.error.kind == "consequence"), None)
    raised = [candidate for candidate in candidates if candidate.error.kind in ("class", "unknown")]
    if reports := {candidate.statement for candidate in candidates if _reports(candidate.error)}:
        hints = (candidate for candidate in candidates if candidate.error.kind == "hint" and candidate.raised)
        raised = raised or [candidate for candidate in hints if candidate.statement not in reports]
    elif followed is not None:
        raised = [candidate for candidate in raised if candidate.led_to(followed)]
    else:
        beside = {candidate.statement for candidate in candidates if candidate.error.kind in ("warning", "hint")}
        raised = [candidate for candidate in raised if beside and candidate.statement not in beside]
    if raised:
        # An exception precedes its consequences and reports of it, even if nothing else is known about it.
        first = [candidate.error for candidate in raised]
        return [*first, *(error for error in shown if error.kind != "hint" and error not in first)]
    shown = [error for error in shown if error.kind != "unknown"]
    return [error for error in shown if error.kind != "hint"] or shown


def _says_what_its_line_says(error: Explanation) -> bool:
    """Whether reading its line's sentence would add nothing: a wrapper's code leaves the sentence beside it open."""
    return error.is_known and not (error.kind == "wrapper" and is_code(error.code))


def _reports(error: Explanation) -> bool:
    """Whether an error only reports an exception that was raised elsewhere."""
    return error.kind == "wrapper" and not is_code(error.code)


def _depth(error: KnownError) -> int:
    """How far an error is from the cause, among errors of its kind, wherever it was printed.

    A return code says how a call ended, a message says why. Of several wrappers the innermost says most: the library
    whose call failed, then the framework that noticed it, then torch_npu's ERR code, which only names the API.
    """
    if error.kind in ("general", "reading") and not is_return_code(error.code):
        return 2 if is_code(error.code) else 1
    if error.kind == "wrapper" and not error.code.startswith("ERR"):
        return 0 if is_return_code(error.code) else 1
    return 3 if is_return_code(error.code) else 0


def _errors_by_number(text: str, seen: set[str]) -> Iterator[tuple[KnownError, int, str]]:
    """New errors in a text that are recognised by numbers: codes, exit codes, signals."""
    known = known_errors()
    for code, offset in codes_in(_without_information(text)):
        if code not in seen and (error := known.get(code) or composed(code)):
            seen.add(code)
            yield error, offset, code
    yield from _phrases_in(text, seen, with_numbers=True)


def _errors_by_words(text: str, seen: set[str]) -> Iterator[tuple[KnownError, int, str]]:
    """New errors in a text that are recognised by words."""
    informed = _without_information(text)
    for error, offset, words in named_errors_in(_blank(WARNS, informed)):
        if error.code not in seen and not (error.kind == "unknown" and _is_report(text, offset)):
            seen.add(error.code)
            yield error, offset, words
    for line in WARNS.finditer(informed):
        for error, offset, words in named_errors_in(line[0]):
            if error.code not in seen:
                seen.add(error.code)
                kind: Kind = "warning" if error.strength == "exact" else "hint"
                yield replace(error, kind=kind), line.start() + offset, words
    yield from _phrases_in(text, seen, with_numbers=False)


def _without_information(text: str) -> str:
    """The text with informational lines blanked, so that positions do not change."""
    return _blank(INFORMATION, text)


def _blank(lines: re.Pattern[str], text: str) -> str:
    return lines.sub(lambda line: " " * len(line[0]), text)


def _is_report(text: str, offset: int) -> bool:
    """Whether a line only reports an exception that was raised elsewhere."""
    line = text[offset:].split("\n", 1)[0]
    reports = (pattern for pattern, error in (*_phrases(True), *_phrases(False)) if error.kind == "wrapper")
    return any(pattern.search(line) for pattern in reports)


def _phrases_in(text: str, seen: set[str], with_numbers: bool) -> Iterator[tuple[KnownError, int, str]]:
    for pattern, error in _phrases(with_numbers):
        if error.code not in seen and (match := pattern.search(text)):
            seen.add(error.code)
            yield error, match.start(), match[0]


@functools.cache
def _phrases(with_numbers: bool) -> list[tuple[re.Pattern[str], KnownError]]:
    """The patterns of messages, with those in which a number matters separate from the others."""
    return [
        (re.compile(error.pattern, re.MULTILINE), error)
        for error in known_errors().values()
        if error.pattern and bool(NUMBER.search(COUNTS.sub("", error.pattern))) == with_numbers
    ]
