"""Map modules to files of a project, and find simple facts in their text without parsing it."""

from __future__ import annotations

import io
import os
import re
import tokenize
from functools import lru_cache
from pathlib import Path

from npukit.source.cache import per_project

_DEFINITION = re.compile(r"^(?:async def|def|class) (\w+)", re.MULTILINE)


def file_of(module: str, path: Path, root: Path | None) -> Path | None:
    """The project file of a module as imported by the file at `path` (leading dots: relative import), or None."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    bases = [_above(path, level or 1), *((str(root), f"{root}/src", f"{root}/lib") if root and not level else ())]
    candidates = (file for base in bases for file in _files_of(base, name) if file != path)
    return next(candidates, None)


@lru_cache(maxsize=256)
def _above(path: Path, level: int) -> str:
    """The folder this many levels above a file, as text, because comparing paths is slow."""
    return str(path.parents[level - 1]) if level <= len(path.parents) else ""


@per_project(maxsize=65536)
def _files_of(folder: str, module: str) -> tuple[Path, ...]:
    """The files that may be a module below a folder. Cached, because the lookup repeats for every name it exports."""
    where = "/".join((folder, *filter(None, module.split("."))))
    files = (f"{where}.py" if module else where, f"{where}/__init__.py")
    existing = (file for file in files if folder and os.path.isfile(file))  # noqa: PTH113 - most are none, and no Path
    return tuple(map(Path, existing))


def defines(file: Path, name: str) -> bool:
    """Whether the file itself defines the function or class, as in most cases. Does not parse the file."""
    return name in _definitions_of(file)


@per_project(maxsize=4096)
def _definitions_of(file: Path) -> frozenset[str]:
    return frozenset(_DEFINITION.findall(text_of(file)))


@per_project(maxsize=4096)
def has_text(file: Path, text: str) -> bool:
    return text in text_of(file)


@per_project(maxsize=64)
def text_of(file: Path) -> str:
    """The text of a file for searching; "" if it cannot be read.

    >>> text_of(Path("setup.py")).partition("\\n")[0]
    'from setuptools import setup'
    """
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def encoding_of(data: bytes) -> str:
    """The encoding that a Python file declares; UTF-8 by default."""
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
