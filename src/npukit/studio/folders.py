"""The folders that the studio may use: every path from a browser is resolved and must be below one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError

STATE = Path(".npukit", "studio")
LONGEST = 4096


class Refused(NpukitError):
    """A path outside the studio's folders."""


@dataclass(frozen=True)
class Folders:
    """The workspace, in which relative paths are looked up, and further folders with models or data.

    >>> Folders.of([Path("work"), Path("/models")]).inside("runs/lora")
    PosixPath('/home/me/work/runs/lora')
    """

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, paths: list[Path]) -> Folders:
        """Refuse what is not a folder."""
        for path in paths:
            if not path.is_dir():
                raise NpukitError(f"There is no folder {path}: name the folder to work in.")
        return cls(tuple(path.resolve() for path in paths))

    @property
    def workspace(self) -> Path:
        return self.roots[0]

    @property
    def state(self) -> Path:
        """Where the studio keeps its runs."""
        return self.workspace / STATE

    def inside(self, text: str) -> Path:
        """The resolved path; it need not exist. Links that lead out of the folders are refused as well."""
        try:
            path = (self.workspace / Path(text).expanduser()).resolve()
        except (OSError, ValueError, RuntimeError):
            raise Refused(f"{text[:80]!r} is not a path.") from None
        if len(text) > LONGEST or not any(path.is_relative_to(root) for root in self.roots):
            raise Refused(f"{text[:80]} is outside the folders that the studio was started with.")
        return path

    def shown(self, path: Path) -> str:
        """The path as a command in the workspace names it."""
        return path.relative_to(self.workspace).as_posix() if path.is_relative_to(self.workspace) else str(path)

    def check(self, value: Any) -> None:
        """Refuse nested values that name a path outside; names on a hub are no paths."""
        for text in _texts(value):
            for part in text.split("="):  # NAME=PATH
                if _is_path(part):
                    self.inside(part)

    def entries(self, folder: Path, most: int = 500) -> list[dict[str, Any]]:
        """The content of a folder, folders first."""
        try:
            paths = sorted(folder.iterdir(), key=lambda path: (not path.is_dir(), path.name.lower()))
        except OSError as error:
            raise NpukitError(f"{self.shown(folder)} cannot be read: {error.strerror}.") from error
        visible = [path for path in paths if not path.name.startswith(".")][:most]
        return [{"name": path.name, "path": self.shown(path), "folder": path.is_dir()} for path in visible]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _is_path(text: str) -> bool:
    """Whether a program could use the text as a path to another place; text of several lines is no path."""
    if not text or "\n" in text or len(text) > LONGEST:
        return False
    if text.startswith(("/", "~")) or ".." in Path(text).parts or "\0" in text:
        return True
    try:
        return Path(text).is_symlink() or Path(text).exists()
    except (OSError, ValueError):
        return False
