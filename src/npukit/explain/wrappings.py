"""Remove what programs put around a message: ranks and workers, times, stack frames, quotes, other exceptions.

A message stays the same whether a launcher adds the rank, a logger the time, a terminal its colours or JSON its
escapes, or another process quotes it in its own exception. Known messages are compared with what remains, the
statements. If one exception quotes another or was raised from it, the inner one says what happened.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

CLASS = r"(?:\w+\.)*(?:[A-Z]\w*)?(?:Error|Exception|Unsupported|Failed)"
DAY = r"(?:\d{4}[-/])?\d\d[-/]\d\d(?:[-/]\d{4})?"
# Who wrote a line and when. The level is kept, because it shows whether a line is an error.
PREFIX = re.compile(
    r"(?:(?:\^?\[)*\d{1,2}(?:;\d{1,2})*m(?=[ (])"  # a colour whose escape character was lost, for example on a web page
    r"|\[(?:rank|default)\s?\d+\]:?"  # torch, torchrun
    r"|\[\d+,\d+\](?:<\w+>)?:"  # mpirun
    r"|\((?:[\w.:/-]+ )?pid=\d+[^)\n]*\)"  # Ray, vLLM
    r"|[\w.-]{1,60}-\d+: (?=\W|[A-Z])"  # pdsh, Kubernetes: a host name with a number
    r"|\d{1,4}: (?=\W|[A-Z])"  # srun
    r"|(?:stdout|stderr) [FP](?= )"  # containerd
    rf"|\[?{DAY}[T -]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)?\]?:?(?= )"
    r"|(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?[JFMASOND][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?: \d{4})?:?"  # ctime, syslog
    r"|[│┃║❱>|](?= )"  # frames of tracebacks, citations
    r")"
)
GAP = re.compile(r" (?! )")  # one space after a prefix belongs to it, indentation does not
FRAME_END = re.compile(r"\s*[│┃║]\s*$")
COLOUR = re.compile(r"(?<=\))(?:\^?\[)*0(?:;0)?m(?= |$)")
LINE_NUMBER = re.compile(r"^\s*\d{1,6}(?= {2,}\S|\t)")  # line numbers added by log viewers
# What a logger writes before an exception, a code or a frame.
LEVEL = re.compile(
    r"^[^\n]{0,60}?(?:\b(?:ERROR|FATAL|CRITICAL)\b|[EWF]\d{4,8} \d\d:)[^\n]{0,90}?[\])|:>-] +"
    rf"(?={CLASS}[:(]|[EW][A-Z]\d{{4}}\b|E\d{{5}}\b| *File \"|Traceback )"
)
ESCAPED = re.compile(r"\\r(?=\\n)|\\([nt\"'\\])")
ESCAPES = {None: "", "n": "\n", "t": "\t"}
DEEPEST = 3  # how often a text may have been escaped again
WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")
ENTITY = re.compile(r"&(?:#\d+|#x[0-9a-fA-F]+|quot|apos|lt|gt|amp);")
# An exception within a line: quoted, in brackets, or after a colon.
NESTED = re.compile(rf"(?<=[\s'\"(\[{{])(?=(?:{CLASS}(?:: ?|\([\"']))(?=\S))")
QUOTED_BEFORE = re.compile(
    r"(?:[:=,(\[{]|\b(?:by|error|exception|raised|with|message)) ?(?:[bru]?[\"'])? ?$", re.IGNORECASE
)
SOURCE_LINE = re.compile(r"\s*(?:raise|except)\b")  # a source line in a traceback
BEGINS = re.compile(rf"^{CLASS}(?::|\([\"'])")
CHAINED = "The above exception was the direct cause of the following exception"


@dataclass(frozen=True)
class Statement:
    """What one line says, or one of the lines that are escaped in it; `outer`: it quotes or wraps another exception."""

    text: str
    outer: bool = False


def statements(line: str) -> list[Statement]:
    """The statements of a line, without what surrounds them.

    >>> [each.text for each in statements("[rank1]: ERROR 11-02 07:42:53 [x.py:7] ValueError: no")]
    ['ValueError: no']
    >>> statements("RuntimeError: it failed with 'KeyError: 3'")
    [Statement(text='RuntimeError: it failed with ', outer=True), Statement(text='KeyError: 3', outer=False)]
    """
    first, *others = _unescaped(line).split("\n")
    closing = ""
    if others:
        others[-1], closing = _closed(first, others[-1])
    parts = [statement for part in (first, *others) for statement in _unnested(_bare(part))]
    return [*parts, Statement(closing, outer=True)] if closing else parts


def _closed(first: str, last: str) -> tuple[str, str]:
    """The last of several quoted lines up to the quote that the first one opens, and what follows it."""
    ends = [last.rfind(quote) for quote in "\"'" if first.count(quote) % 2]
    end = min((end for end in ends if end >= 0), default=len(last))
    return last[:end], last[end:]


def _bare(line: str) -> str:
    """A line without its origin and time."""
    if "m" in line and "[" in line:
        line = COLOUR.sub("", line)
    if FRAME_END.search(line):
        line = FRAME_END.sub("", line)
    start = match.end() if (match := LINE_NUMBER.match(line)) else 0
    while match := PREFIX.match(line, _behind_gap(line, start)):
        start = match.end()
    line = line[_behind_gap(line, start) if start else 0 :]
    return LEVEL.sub("", line, count=1)


def _behind_gap(line: str, start: int) -> int:
    return match.end() if (match := GAP.match(line, start)) else start


def _unescaped(line: str) -> str:
    """A line with its escaped line breaks and quotes restored, however often they were escaped."""
    if "&" in line and ENTITY.search(line):
        line = html.unescape(line)
    if "\\" not in line or WINDOWS_PATH.search(line):
        return line
    for _ in range(DEEPEST):
        line, count = ESCAPED.subn(lambda match: ESCAPES.get(match[1], match[1]), line)
        if not count:
            break
    return line


def _unnested(line: str) -> Iterator[Statement]:
    """A line, split where an exception in it names another one."""
    if "Error" not in line and "Exception" not in line:
        yield Statement(line)
        return
    starts = [place for place in map(re.Match.start, NESTED.finditer(line)) if QUOTED_BEFORE.search(line[:place])]
    if not starts or SOURCE_LINE.match(line):
        yield Statement(line)
        return
    ends = [*starts[1:], len(line)]
    outer = bool(BEGINS.match(line))
    yield Statement(line[: starts[0]], outer)
    for start, end in zip(starts, ends, strict=True):
        quote = line[start - 1]
        last = line.rfind(quote, start, end) if quote in "'\"" else -1
        closing = last if last > start else end
        yield Statement(line[start:closing], outer=end != len(line))
        if closing < end:
            yield Statement(line[closing:end], outer=True)
