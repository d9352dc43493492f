"""Find known errors in text and say what they mean. Nothing is asked of the network or of the machine."""

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
LAST_RESORT = ("class", "unknown", "hint")  # said only where nothing else is
SAY_LITTLE = (*LAST_RESORT, "wrapper", "warning")
LAST_OF_TRACEBACK = re.compile(
    r"^(?:\[rank\d+\]:\s*)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::.*)?$", re.MULTILINE
)
TOLD_AS_ERROR = re.compile(
    r"^.*(?:\[(?:ERROR|FATAL|CRITICAL)\]|\b(?:ERROR|FATAL|CRITICAL)\b|\berror:|^\[?[EF]\d{4,8} \d\d:).*$", re.MULTILINE
)
# Lines that programs write while all is well; patterns of what such lines tell (memory, a loss) still apply to them.
INFORMATION = re.compile(
    r"^(?![^\n]*(?:(?:Error|Exception):|\[ERROR\]))"
    r"(?:[^\n]{0,70}?[\s\[(|-])?(?:(?:INFO|DEBUG|TRACE)\b|I\d{4} \d\d:\d\d:\d\d)[^\n]*$",
    re.MULTILINE,
)
# Lines of programs that go on: what they lack is not what ended them.
WARNS = re.compile(r"^(?:(?:[^\n]{0,70}?[\s\[(|-])?WARN(?:ING)?\b|(?:\S+:\d+: )?\w*Warning: )[^\n]*$", re.MULTILINE)
MINUTE = len("11-14 10:30")  # of a time
COUNTS = re.compile(r"\{[\d,]+\}")  # how often something may come, in a pattern
NUMBER = re.compile(r"\d")
LOOKS_LIKE_AN_ERROR = (LAST_OF_TRACEBACK, TOLD_AS_ERROR)  # the surest first


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
    strength: Strength  # exact: its causes are stated; reading: read from `words`; nearest: a lead, no cause
    words: str = ""  # of the line, which say so
    source: str = ""  # the log that it is in, where there are several
    rank: int | None = None  # where the line or the log's name tells

    @property
    def is_known(self) -> bool:
        """Whether the error itself is known, so that its causes may be stated.

        >>> explain("KeyError: 'colour'")[0].is_known
        False
        """
        return self.strength == "exact"


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
    search = Search()
    for source, text in logs.items():
        search.read(source, io.BytesIO(text.encode(errors="replace")))
    return search.explanations


class Search:
    """Looks for errors in one log after the other, however long they are.

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
        """The errors that are known, each once, the one to begin with first.

        Of a line that a particular message explains, general ones are left out, unlike codes; what its sentence says is
        told only where nothing else explains it, and what the class of an exception says only where nothing else in the
        logs does.
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
        """The first line that tells of an error, known or not: what to show when nothing can be explained."""
        return next(filter(None, map(self._first_lines.get, LOOKS_LIKE_AN_ERROR)), None)

    def read(self, source: str, log: BinaryIO) -> None:
        """Look for errors in a log."""
        seen: set[str] = set()  # in this log, of which the first place counts
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
            facts["strength"] = "exact"  # a code that is asked about alone is all that there is to know
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
    """A statement, and where it stands: the line's index in its window, and its place among those of the line."""

    statement: Statement
    index: int
    part: int
    of_several: bool


def _readings(window: Window, indices: Sequence[int]) -> Iterator[_Reading]:
    """What some lines of a window say. An exception that was raised from the one above it is an outer one."""
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
    """An error with what decides about its rank among those that were found."""

    error: Explanation
    depth: int
    outer: bool
    raised: bool  # an exception begins the statement
    time: str
    statement: tuple[int, int, int]  # the log, the line and its part

    @property
    def place(self) -> tuple[str, tuple[int, int, int]]:
        """When it was written, and where."""
        return self.time, self.statement

    def led_to(self, other: _Candidate) -> bool:
        """Whether it came so much before another error, or elsewhere, that both are not one message."""
        elsewhere = (self.error.source, self.error.rank) != (other.error.source, other.error.rank)
        return self.place < other.place and (elsewhere or self.time[:MINUTE] < other.time[:MINUTE])

    def order(self, first_failed: int | None = None) -> tuple[float, int, bool, bool, object]:
        """What to sort by; what an outer exception's sentence says comes behind all that the inner one means."""
        kind: float = ORDER[self.error.kind]
        if self.outer and self.error.kind != "cause":
            kind = max(kind, ORDER["consequence"] + 0.5)
        elsewhere = None not in (first_failed, self.error.rank) and self.error.rank != first_failed
        return kind, self.depth, self.outer, elsewhere, self.place


def _worth_saying(candidates: Sequence[_Candidate]) -> list[Explanation]:
    """Of errors in their order those which are said: what says little only where nothing says more."""
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
        # What was raised comes before what followed from it or reports it, though nothing else is known of it.
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
    """How far from the cause an error stands among those of its kind, wherever it was printed.

    A return code says how a call ended, a message says why. Of wrappers the deepest says most: the library whose call
    failed, then the framework that noticed it, then torch_npu's ERR code, which names the API only.
    """
    if error.kind in ("general", "reading") and not is_return_code(error.code):
        return 2 if is_code(error.code) else 1
    if error.kind == "wrapper" and not error.code.startswith("ERR"):
        return 0 if is_return_code(error.code) else 1
    return 3 if is_return_code(error.code) else 0


def _errors_by_number(text: str, seen: set[str]) -> Iterator[tuple[KnownError, int, str]]:
    """The errors of a text that were not seen before and show in numbers: codes, exit codes, signals."""
    known = known_errors()
    for code, offset in codes_in(_without_information(text)):
        if code not in seen and (error := known.get(code) or composed(code)):
            seen.add(code)
            yield error, offset, code
    yield from _phrases_in(text, seen, with_numbers=True)


def _errors_by_words(text: str, seen: set[str]) -> Iterator[tuple[KnownError, int, str]]:
    """The errors of a text that were not seen before and show in its words."""
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
    """A text in which lines that only inform are blank, so that every place stays where it is."""
    return _blank(INFORMATION, text)


def _blank(lines: re.Pattern[str], text: str) -> str:
    return lines.sub(lambda line: " " * len(line[0]), text)


def _is_report(text: str, offset: int) -> bool:
    """Whether a line only reports what was raised elsewhere: it is no exception of its own."""
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
    """The patterns of messages, those in which a number counts apart from the others."""
    return [
        (re.compile(error.pattern, re.MULTILINE), error)
        for error in known_errors().values()
        if error.pattern and bool(NUMBER.search(COUNTS.sub("", error.pattern))) == with_numbers
    ]
