"""Treat the code cells of a Jupyter notebook as one Python text, and write edits of it back into the JSON.

Only the strings of changed lines are rewritten. Outputs, metadata, other cells and the JSON's layout stay the same byte
for byte.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from npukit.source.place import Edit

_SPACE = re.compile(r"[ \t\r\n]*")
_MAGIC = re.compile(r"^([ \t]*)([%!?](?:.*\\\r?\n)*.*)$", re.MULTILINE)  # a shell command may continue on the next line
_CELL_MAGIC = re.compile(r"\s*%%(?!time|capture|prun)")
_TIMED = re.compile(r"%time(?:it)?[ \t]+(?=[\w(])(?!(?:async|class|def|for|from|if|import|try|while|with)\b)")
_ASSIGNED_SHELL = re.compile(r"^[ \t]*[\w, ]+=[ \t]*[%!].*$", re.MULTILINE)


@dataclass(frozen=True)
class _Line:
    """One string of a cell's source: its position in the JSON, and its text."""

    start: int
    end: int
    text: str
    offset: int  # offset in the code
    listed: bool  # one of a list of lines, rather than the whole source
    first: bool  # index of its cell


class Notebook:
    """A notebook's text, with its code cells as one program."""

    def __init__(self, text: str) -> None:
        self.text = text
        parsed = json.loads(text)
        if not isinstance(parsed, dict) or not _has_sources(parsed.get("cells", [])):
            raise ValueError("it is not a notebook of format 4")
        self._lines: list[_Line] = []
        self._cells: list[tuple[int, int]] = []  # first line of the code, index of the cell
        self._shown: list[str] = []
        self.commands: list[tuple[int, int, str]] = []  # lines that are not Python: cell, line in it, text
        try:
            self._collect()
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("it is not a notebook of format 4") from error
        self.code = "".join(self._shown)

    def _collect(self) -> None:
        offset, line_number = 0, 1
        for index, strings in _sources(self.text):
            source = "".join(text for _, _, text in strings)
            shown = source if _ends_line(source) else source + "\n"
            self._cells.append((line_number, index))
            at = offset
            for i, (start, end, text) in enumerate(strings):
                listed = self.text[_before_space(self.text, start) - 1] in "[,"
                self._lines.append(_Line(start, end, text, at, listed, first=i == 0))
                at += len(text)
            offset += len(shown)
            line_number += len(re.findall(r"\r\n|\r|\n", shown))
            self._shown.append(_without_magic(shown))
            lines = zip(shown.splitlines(), self._shown[-1].splitlines(), strict=False)
            hidden = ((i, line) for i, (line, python) in enumerate(lines, 1) if line != python)
            self.commands += [(index, i, line) for i, line in hidden if not _TIMED.match(line.lstrip())]

    def cell_of(self, line: int) -> tuple[int, int]:
        """The cell that contains a line of the code, and the cell's first line."""
        first, index = self._cells[bisect_right(self._cells, (line, len(self.text))) - 1]
        return index, first

    def first_line(self, cell: int) -> int:
        """The line of the code at which a cell begins."""
        return next(line for line, index in self._cells if index == cell)

    def edited(self, edits: Iterable[Edit]) -> str:
        """The notebook's text with edits applied to its code."""
        changed: dict[int, str] = {}
        offsets = [line.offset for line in self._lines]
        for edit in reversed(_in_order(edits)):
            first = max(0, bisect_right(offsets, edit.start) - 1)
            if first and self._lines[first].first and edit.start == edit.end and edit.text.endswith("\n"):
                # A new line after the last line of the previous cell.
                above = changed.get(first - 1, self._lines[first - 1].text)
                changed[first - 1] = above + ("" if above.endswith("\n") else "\n") + edit.text[:-1]
                continue
            last = max(first, bisect_right(offsets, max(edit.start, edit.end - 1)) - 1)
            whole = "".join(changed.get(i, self._lines[i].text) for i in range(first, last + 1))
            start, end = edit.start - offsets[first], edit.end - offsets[first]
            changed[first] = whole[:start] + edit.text + whole[end:]
            changed.update(dict.fromkeys(range(first + 1, last + 1), ""))
        text = self.text
        for i in sorted(changed, reverse=True):
            line = self._lines[i]
            text = text[: line.start] + self._encoded(line, changed[i]) + text[line.end :]
        return text

    def _encoded(self, line: _Line, new: str) -> str:
        """The JSON of an edited line, as several strings if the source is a list of lines."""
        ascii_only = self.text[line.start : line.end].isascii()
        strings = new.splitlines(keepends=True) if line.listed and new else [new]
        space = self.text[_before_space(self.text, line.start) : line.start]
        return f",{space}".join(json.dumps(string, ensure_ascii=ascii_only) for string in strings)


def _in_order(edits: Iterable[Edit]) -> list[Edit]:
    """The edits by position, with insertions at the same position merged."""
    joined: list[Edit] = []
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        if joined and joined[-1].start == joined[-1].end == edit.start == edit.end:
            edit = Edit(edit.start, edit.end, joined.pop().text + edit.text)
        joined.append(edit)
    return joined


def _has_sources(cells: Any) -> bool:
    """Whether these are cells whose sources are strings or lists of strings."""
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        return False
    sources = [cell.get("source", "") for cell in cells]
    return all(
        isinstance(source, str) or (isinstance(source, list) and all(isinstance(line, str) for line in source))
        for source in sources
    )


def _before_space(text: str, i: int) -> int:
    """The start of the white space that ends at i."""
    while i and text[i - 1].isspace():
        i -= 1
    return i


def _ends_line(source: str) -> bool:
    return not source or source.endswith("\n")


def _without_magic(source: str) -> str:
    """The cell with IPython's syntax replaced by comments or no-ops of the same length, so that offsets stay."""
    if _CELL_MAGIC.match(source):
        return _blank(source)

    def hide(match: re.Match[str]) -> str:
        indent, rest = match.groups()
        if timed := _TIMED.match(rest):  # the rest of the line is Python
            return f"{indent}{'0;'.ljust(timed.end())}{rest[timed.end() :]}"
        first, *others = re.split(r"(?<=\n)", rest)
        return indent + _statement(first) + "".join(map(_blank, others))

    source = _ASSIGNED_SHELL.sub(lambda match: re.sub(r"=([ \t]*)[%!].*", _hidden_value, match[0]), source)
    source = _MAGIC.sub(hide, source)
    return re.sub(
        r"^([ \t]*[\w.]+)\?{1,2}[ \t]*$", lambda match: match[1].ljust(len(match[0])), source, flags=re.MULTILINE
    )


def _statement(line: str) -> str:
    """A statement without effect that is as long as the line."""
    end = len(line.rstrip("\r\n"))
    return ("pass" if end >= 4 else "0").ljust(end) + line[end:]


def _blank(text: str) -> str:
    return "".join(character if character in "\r\n" else " " for character in text)


def _hidden_value(match: re.Match[str]) -> str:
    return "=0".ljust(len(match[0]))


def _sources(text: str) -> Iterator[tuple[int, list[tuple[int, int, str]]]]:
    """The index of each code cell and the strings of its source, as (start, end, value) in the JSON."""
    values = _Positions(text).value(0)[0]
    for index, cell in enumerate(values.get("cells", [])[0] if "cells" in values else []):
        fields, _ = cell
        if fields["cell_type"][0] != "code" or "source" not in fields:
            continue
        source, span = fields["source"]
        yield index, [(*where, value) for value, where in source] if isinstance(source, list) else [(*span, source)]


class _Positions:
    """A JSON reader that records positions: value(i) is (value, (start, end)), and containers hold such pairs."""

    def __init__(self, text: str) -> None:
        self.text = text

    def value(self, i: int) -> tuple[Any, tuple[int, int]]:
        i = self._skip(i)
        character = self.text[i]
        if character == '"':
            value, end = scanstring(self.text, i + 1, True)
            return value, (i, end)
        if character == "{":
            return self._members(i, "}")
        if character == "[":
            return self._members(i, "]")
        end = re.compile(r"[^\s,\]}]*").match(self.text, i).end()  # type: ignore[union-attr]
        return self.text[i:end], (i, end)

    def _members(self, start: int, close: str) -> tuple[Any, tuple[int, int]]:
        pairs: dict[str, Any] = {}
        items: list[Any] = []
        i = self._skip(start + 1)
        while self.text[i] != close:
            if close == "}":
                key, i = scanstring(self.text, i + 1, True)
                pairs[key] = self.value(self._skip(i) + 1)
                i = pairs[key][1][1]
            else:
                items.append(self.value(i))
                i = items[-1][1][1]
            i = self._skip(i)
            if self.text[i] == ",":
                i = self._skip(i + 1)
        return (pairs if close == "}" else items), (start, i + 1)

    def _skip(self, i: int) -> int:
        return _SPACE.match(self.text, i).end()  # type: ignore[union-attr]
