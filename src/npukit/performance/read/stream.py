"""Read files of any size item by item. Damage is reported in one sentence."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from npukit.errors import NpukitError


class UnreadableProfile(NpukitError):
    """A file that does not have the expected content."""


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, decompressing gzip whatever its suffix."""
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file


class _Cut(ValueError):
    """A file that ends before its JSON does."""


class _Scanner:
    """JSON in a file of any size: the standard library's decoder applied to a moving window."""

    _WINDOW = 1 << 22  # characters in a window
    _LARGEST = 1 << 26  # characters of one value
    _TOKEN = 16  # at this distance from the window's end, an error may be due to the cut
    _SPACE = re.compile(r"[ \t\r\n]*")
    _decode = staticmethod(json.JSONDecoder(strict=False).raw_decode)

    def __init__(self, file: IO[bytes]) -> None:
        self._file = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        self._text, self._at = "", 0

    def next(self) -> str:
        """The next character that is not white space."""
        while True:
            match = self._SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            self._read_on()

    def take(self, expected: str) -> bool:
        """Skip the next character if it is one of these."""
        is_next = self.next() in expected
        self._at += is_next
        return is_next

    def value(self) -> Any:
        """The next complete value."""
        self.next()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or len(self._text[error.pos :].strip()) < self._TOKEN
                if not is_cut or len(self._text) - self._at > self._LARGEST:
                    raise
            else:
                if end < len(self._text):  # a number could continue
                    self._at = end
                    return value
            self._read_on()

    def members(self) -> Iterator[str]:
        """The names of an object. The value must be read after each one."""
        more = self.take("{") and not self.take("}")
        while more:
            name = str(self.value())
            self.take(":")
            yield name
            more = self.take(",")

    def items(self) -> Iterator[Any]:
        """The values of a list."""
        more = self.take("[") and not self.take("]")
        while more:
            yield self.value()
            more = self.take(",")
            if not more and not self.take("]"):
                raise json.JSONDecodeError("a list is not closed", self._text[self._at : self._at + 20], 0)

    def _read_on(self) -> None:
        read = self._file.read(max(self._WINDOW, len(self._text) - self._at))
        if not read:
            raise _Cut
        self._text, self._at = self._text[self._at :] + read, 0


@contextlib.contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Turn errors from reading a damaged file into a sentence."""
    try:
        yield
    except _Cut:
        raise UnreadableProfile(f"{path} ends in the middle: copy it again, or profile again.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UnreadableProfile(f"{path} is not valid JSON: copy it again, or profile again.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UnreadableProfile(f"{path} cannot be unpacked: copy it again, or profile again.") from None
    except sqlite3.Error as error:
        raise UnreadableProfile(f"{path} is not a readable profiler database ({error}): copy it again.") from None
    except (csv.Error, RecursionError, OverflowError):
        raise UnreadableProfile(f"{path} is damaged: copy it again, or profile again.") from None
    except OSError as error:
        raise UnreadableProfile(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None


def json_head(path: Path, keep: tuple[str, ...]) -> dict[str, Any]:
    """The members of a Kineto trace other than its events, without reading these."""
    kept: dict[str, Any] = {}
    with sentences(path), open_bytes(path) as file:
        scanner = _Scanner(file)
        for name in scanner.members():
            if name == "traceEvents":
                break  # only the trace's name follows them
            value = scanner.value()
            if name in keep:
                kept[name] = value
    return kept


def json_items(path: Path, member: str = "") -> Iterator[Any]:
    """The items of the list that a JSON file or one of its members contains, one by one.

    >>> json_items(Path("trace.json"), "traceEvents")
    """
    with sentences(path), open_bytes(path) as file:
        scanner = _Scanner(file)
        if not member:
            yield from scanner.items()
        for name in scanner.members() if member else ():
            if name == member:
                yield from scanner.items()
                break
            scanner.value()


def json_whole(path: Path) -> dict[str, Any]:
    """A small JSON file that contains an object."""
    with sentences(path):
        with open_bytes(path) as file:
            content = json.load(file)
        if not isinstance(content, dict):
            raise UnreadableProfile(f"The content of {path} does not match its name: copy it again.")
        return content


def csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file by column name, without an incomplete last row."""
    with sentences(path), open_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        reader = csv.reader((line.replace("\0", "") for line in text), strict=False)
        names = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if len(cells) >= len(names) > 0:
                yield dict(zip(names, cells, strict=False))
