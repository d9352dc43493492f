"""Read files of any size, item by item; what is damaged becomes one sentence."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from npukit.errors import NpukitError


class Unreadable(NpukitError):
    """A file that is not what it should be."""


def open_bytes(path: Path) -> IO[bytes]:
    """A file, unpacked where it is packed by gzip, whatever it is called."""
    file = path.open("rb")
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packed else file


class _Nested:
    """A file that ends where its brackets nest deeper than any trace's: the parser would take hours over them."""

    DEEPEST = 1000

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._depth = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._depth += data.count(b"[") + data.count(b"{") - data.count(b"]") - data.count(b"}")
        if self._depth > self.DEEPEST:
            raise RecursionError
        return data


@contextlib.contextmanager
def sentences(path: Path) -> Iterator[None]:
    """Turn what reading a damaged file raises into a sentence."""
    import ijson

    try:
        yield
    except (ijson.JSONError, json.JSONDecodeError, UnicodeDecodeError) as error:
        cut = isinstance(error, ijson.IncompleteJSONError) and "premature" in str(error)
        what = "ends in the middle" if cut else "is not valid JSON"
        raise Unreadable(f"{path} {what}: copy it again, or profile again.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise Unreadable(f"{path} cannot be unpacked: copy it again, or profile again.") from None
    except sqlite3.Error as error:
        raise Unreadable(f"{path} is not a readable profiler database ({error}): copy it again.") from None
    except (csv.Error, RecursionError, OverflowError):
        raise Unreadable(f"{path} is damaged: copy it again, or profile again.") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None


def json_head(path: Path, keep: tuple[str, ...]) -> dict[str, Any]:
    """The members of a Kineto trace that stand beside its events, without reading those."""
    import ijson

    found: dict[str, Any] = {}
    with sentences(path), open_bytes(path) as file:
        builder: ijson.ObjectBuilder | None = None
        name = ""
        for prefix, event, value in ijson.parse(_Nested(file), use_float=True):
            if not prefix and event == "map_key":
                if value == "traceEvents":
                    break  # only the trace's name follows them
                name, builder = value, ijson.ObjectBuilder() if value in keep else None
            elif builder and prefix.startswith(name):
                builder.event(event, value)
                found[name] = builder.value
            elif not prefix and event == "start_array":
                break  # a bare list of events
    return found


def json_items(path: Path, prefix: str) -> Iterator[Any]:
    """The items of a list in a JSON file, one by one.

    >>> json_items(Path("trace_view.json"), "item")
    """
    import ijson

    with sentences(path), open_bytes(path) as file:
        yield from ijson.items(_Nested(file), prefix, use_float=True)


def json_whole(path: Path) -> dict[str, Any]:
    """A small JSON file that holds an object."""
    with sentences(path):
        with open_bytes(path) as file:
            found = json.load(file)
        if not isinstance(found, dict):
            raise Unreadable(f"{path} does not hold what its name says: copy it again.")
        return found


def csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file by the names of its columns; a row that was cut off is left out."""
    with sentences(path), open_bytes(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        reader = csv.reader((line.replace("\0", "") for line in text), strict=False)
        names = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if len(cells) >= len(names) > 0:
                yield dict(zip(names, cells, strict=False))
