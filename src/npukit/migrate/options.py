"""The options of a project in pyproject.toml: select, ignore and exclude in [tool.npukit]."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.source.modules import text_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Options:
    """Rules to use and to ignore, by prefix of their codes, and path patterns of files to exclude."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    folder: Path = Path()  # the patterns are relative to it

    def excludes(self, file: Path) -> bool:
        file = file.absolute()
        path = (file.relative_to(self.folder) if file.is_relative_to(self.folder) else file).as_posix()
        return any(fnmatch(path, pattern) or fnmatch(path, f"{pattern.rstrip('/')}/*") for pattern in self.exclude)


def project_options(start: Path) -> Options:
    """Return the options of the project around a path, from the nearest pyproject.toml above it.

    >>> project_options(Path("src/train.py")).ignore
    ('NPK6',)
    """
    start = start.absolute()
    for folder in [start, *start.parents]:
        if (folder / "pyproject.toml").is_file():
            return _read(folder / "pyproject.toml")
    return Options()


def toml_of(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, or nothing if it is broken, which must not stop an analysis.

    >>> toml_of(Path("pyproject.toml"))["project"]["name"]
    'npukit'
    """
    try:
        return tomllib.loads(text_of(path))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _read(path: Path) -> Options:
    table: Any = toml_of(path).get("tool", {}).get("npukit", {})
    for key, value in table.items():
        if key not in ("select", "ignore", "exclude"):
            raise NpukitError(f"{path}: [tool.npukit] has no option {key!r}: use select, ignore or exclude.")
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise NpukitError(f"{path}: [tool.npukit] {key} must be a list of strings.")
    return Options(**{key: tuple(value) for key, value in table.items()}, folder=path.parent)
