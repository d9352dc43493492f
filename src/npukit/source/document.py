"""A file as it is on disk, and the same file with edits. Bytes that no edit touches stay as they are."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from npukit.source import notebook
from npukit.source.cache import per_project
from npukit.source.find import kind_of
from npukit.source.modules import encoding_of
from npukit.source.names import named
from npukit.source.place import Edit
from npukit.source.python import PythonFile

_KEPT = 128  # files to keep parsed, because files that import them look up their definitions


class Unreadable(Exception):
    """A file that cannot be read as the type its name suggests. The message says why."""

    def __init__(self, reason: str, line: int = 1, cell: int | None = None) -> None:
        super().__init__(reason)
        self.line, self.cell = line, cell


@dataclass
class Document:
    """A file's text and encoding. Edits are offsets into `code`, which is the text or a notebook's code cells."""

    path: Path
    kind: str
    text: str
    encoding: str = "utf-8"
    root: Path | None = None
    book: notebook.Notebook | None = field(default=None, repr=False)

    @property
    def code(self) -> str:
        return self.book.code if self.book else self.text

    @cached_property
    def python(self) -> PythonFile | None:
        """The parsed Python code of this file (all cells of a notebook together); None for other kinds of files."""
        if self.kind not in ("python", "notebook"):
            return None
        try:
            names = named(self.code, self.path, self.root)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _unreadable(error, self.book) from error
        return PythonFile(self.path, self.code, names, self.root, self.book.cell_of if self.book else None)

    def edited(self, edits: Iterable[Edit]) -> Document:
        """The same file with the edits applied, whether or not the result parses."""
        text = self.book.edited(edits) if self.book else apply_edits(self.text, edits)
        return _document(self.path, self.kind, text, self.encoding, self.root)

    def must_parse(self) -> None:
        """Raise Unreadable if the Python code does not parse."""
        if self.kind in ("python", "notebook") and "python" not in self.__dict__:  # which is there once it was parsed
            parsed(self.code)


def read(path: Path, data: bytes | None = None, root: Path | None = None) -> Document:
    """Read a file exactly: the encoding is kept and line endings are not translated.

    >>> read(Path("train.py")).python.resolve(node)
    'torch.cuda.is_available'
    """
    return _read(path, path.read_bytes() if data is None else data, root)


@per_project(maxsize=_KEPT)
def _read(path: Path, data: bytes, root: Path | None) -> Document:
    kind = kind_of(path) or "text"
    encoding = "utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8"
    try:
        if kind == "python":
            encoding = encoding_of(data)
        return _document(path, kind, data.decode(encoding), encoding, root)
    except (SyntaxError, UnicodeError, LookupError, ValueError, RecursionError) as error:
        raise _unreadable(error) from error


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply all edits at once. Duplicate edits count once, and insertions at the same offset keep their order.

    >>> apply_edits("x.cuda()", [Edit(2, 6, "npu")])
    'x.npu()'
    """
    parts, end = [], 0
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        if edit.start < end:
            raise ValueError(f"edits overlap at {edit.start}")
        parts += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join([*parts, text[end:]])


def parsed(code: str) -> ast.Module:
    """The syntax tree of Python code; raises Unreadable with the reason if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(error) from error


def _document(path: Path, kind: str, text: str, encoding: str, root: Path | None) -> Document:
    book = notebook.Notebook(text) if kind == "notebook" else None
    return Document(path, kind, text, encoding, root, book)


def _unreadable(error: BaseException, book: notebook.Notebook | None = None) -> Unreadable:
    if isinstance(error, SyntaxError):
        line = error.lineno or 1
        cell, first = book.cell_of(line) if book else (None, 1)
        return Unreadable(str(error.msg), line - first + 1, cell)
    if isinstance(error, UnicodeDecodeError):
        byte = f"byte 0x{error.object[error.start]:02x} is not {error.encoding}"
        return Unreadable(byte, error.object.count(b"\n", 0, error.start) + 1)
    if isinstance(error, (RecursionError, MemoryError)):
        return Unreadable("nested too deeply")
    return Unreadable(str(error))
