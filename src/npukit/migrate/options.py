"""What a project's pyproject.toml says about npukit: [tool.npukit] with select, ignore and exclude."""

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
    """Rules to use and not to use, by the start of their codes, and files to leave out, by patterns of their paths."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    folder: Path = Path()  # what the patterns are relative to

    def excludes(self, file: Path) -> bool:
        file = file.absolute()
        path = (file.relative_to(self.folder) if file.is_relative_to(self.folder) else file).as_posix()
        return any(fnmatch(path, pattern) or fnmatch(path, f"{pattern.rstrip('/')}/*") for pattern in self.exclude)


def project_options(start: Path) -> Options:
    """The options of the project that a path lies in: of the nearest pyproject.toml above it.

    >>> project_options(Path("src/train.py")).ignore
    ('NPK6',)
    """
    start = start.absolute()
    for folder in [start, *start.parents]:
        if (folder / "pyproject.toml").is_file():
            return _read(folder / "pyproject.toml")
    return Options()


def toml_of(path: Path) -> dict[str, Any]:
    """What a TOML file says; nothing where it is broken, which must not stop an analysis.

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
