"""Read the JSON values of a large file one by one, with their line numbers, without loading the whole file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from npukit.errors import NpukitError

CHUNK = 1 << 20
LARGEST = 1 << 28  # characters of one value; anything larger is a mistake
_decoder = json.JSONDecoder()
_space = re.compile(r"[ \t\r\n]*")


def read_json_values(path: Path) -> Iterator[tuple[int, Any]]:
    """The elements of the array in the file, or its sequence of values, as (line, value)."""
    with path.open("rb") as file:
        text = _Text(file)
        array = text.next_character() == "["
        if array:
            text.advance(1)
        count = 0
        while (character := text.next_character()) != ("]" if array else ""):
            line = text.line
            try:
                value = text.value()
            except (json.JSONDecodeError, RecursionError) as error:
                raise NpukitError(f"{path}, line {line}: {_reason(error, count)}") from error
            yield line, value
            count += 1
            if array and (character := text.next_character()) == ",":
                text.advance(1)
            elif array and character != "]":
                reason = "a comma is missing between two rows" if character else _cut(count)
                raise NpukitError(f"{path}, line {text.line}: {reason}.")
        if array:
            text.advance(1)
            if text.next_character():
                raise NpukitError(f"{path}, line {text.line}: there is more after the end of the array.")


def _cut(count: int) -> str:
    return f"the file ends in the middle, after {count} whole rows; it was probably cut while it was copied"


def _reason(error: json.JSONDecodeError | RecursionError, count: int) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    if error.msg.startswith("Unterminated string") or error.pos >= len(error.doc.rstrip()):
        return f"{_cut(count)}."
    message = error.msg.removesuffix(" at")
    return f"this is not JSON ({message}): fix it, or write one row per line (.jsonl), where bad rows can be skipped."


class _Text:
    """The unread part of a file, which is extended as needed."""

    def __init__(self, file: BinaryIO) -> None:
        self.line = 1
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._ended = False

    def next_character(self) -> str:
        """The next character after white space; "" at the end."""
        while True:
            match = _space.match(self._text, self._at)
            assert match
            self.advance(match.end() - self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def advance(self, characters: int) -> None:
        self.line += self._text.count("\n", self._at, self._at + characters)
        self._at += characters

    def value(self) -> Any:
        """The value that starts here. An error may only mean that the rest of it has not been read yet."""
        while True:
            try:
                value, end = _decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if len(self._text) - self._at < LARGEST and self._more():
                    continue
                raise
            whole = end < len(self._text) and self._text[end] not in ".eE"  # a number may continue
            if whole or not self._more():
                self.advance(end - self._at)
                return value

    def _more(self) -> bool:
        if self._ended:
            return False
        self._text = self._text[self._at :]
        self._at = 0
        piece = self._file.read(max(CHUNK, len(self._text)))
        self._text += self._decoder.decode(piece, final=not piece)
        self._ended = not piece
        return not self._ended
