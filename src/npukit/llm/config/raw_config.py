"""A configuration as the user wrote it: a tree of values with their origins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from npukit.errors import NpukitError

Keys = tuple[str | int, ...]  # ("data", "train", 0, "path")


MISSING = "(missing)"  # a placeholder for a missing value, so that the rest can be validated


@dataclass(frozen=True)
class Origin:
    """The origin of a value: a line of a file, the command line, a variable, or another tool's default."""

    source: str
    line: int | None = None
    is_default: bool = False

    def __str__(self) -> str:
        if self.is_default:
            return f"{self.source}'s default"
        return self.source if self.line is None else f"{self.source}:{self.line}"


COMMAND_LINE = Origin("command line")


@dataclass(frozen=True)
class Mistake:
    """One mistake: where it is, what is wrong, and how to correct it."""

    place: Origin
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Mistakes(NpukitError):
    """All mistakes in a configuration."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.place.line or 0)
        lines = [str(mistake) for mistake in self.mistakes]
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} mistakes:", *lines]))


OPTION = re.compile(r"\b[a-z]+\.[a-z_]+\b(?!=)")  # KEY=VALUE, a word for the command line, is the same in all dialects


@dataclass
class RawConfig:
    """A tree of values with their origins, and the names that the user gave them if those are not their keys."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Keys, Origin] = field(default_factory=dict)
    names: dict[Keys, str] = field(default_factory=dict)
    source: str = "command line"
    theirs: dict[str, str] = field(default_factory=dict)  # the user's tool's name of each option

    def has(self, keys: Keys) -> bool:
        """Return whether the user wrote this value."""
        return keys in self.places and not self.places[keys].is_default

    def set(self, keys: Keys, value: Any, place: Origin, name: str = "") -> None:
        """Set `keys` to `value`, replacing what was there or above."""
        node = self.values
        for key in keys[:-1]:
            if not isinstance(node.get(str(key)), dict):
                node[str(key)] = {}
            node = node[str(key)]
        node[str(keys[-1])] = value
        self.places[keys] = place
        self.names[keys] = name or ".".join(map(str, keys))

    def rename(self, old: Keys, new: Keys) -> None:
        """Move a value together with its origin and the user's name for it."""
        node: Any = self.values
        for key in old[:-1]:
            node = node[key]
        names = {keys: self.name(keys) for keys in [*self.places, old] if keys[: len(old)] == old}
        node[str(new[-1])] = node.pop(old[-1])
        for keys, name in names.items():
            moved = (*new, *keys[len(old) :])
            self.places[moved], self.names[moved] = self.place(keys), name

    def set_default(self, keys: Keys, value: Any, place: Origin) -> None:
        """Set `keys` to `value` unless there is a value already."""
        node: Any = self.values
        for key in keys:
            if not isinstance(node, dict):
                return
            node = node.get(key, {})
        if node == {}:
            self.set(keys, value, place)

    def place(self, keys: Keys) -> Origin:
        """Return where `keys` was written, or the closest value around it."""
        return next((self.places[above] for above in _outwards(keys) if above in self.places), Origin(self.source))

    def name(self, keys: Keys) -> str:
        """Return the user's name for an option."""
        return next((self.names[above] for above in _outwards(keys) if above in self.names), _dotted(keys))

    def mistake(self, keys: Keys, text: str) -> Mistake:
        """Return a mistake about `keys`, whose text has the user's names of options."""
        return Mistake(self.place(keys), self.worded(text))

    def worded(self, text: str) -> str:
        """Return `text` with the user's names of options."""
        return OPTION.sub(lambda name: self.theirs.get(name[0], name[0]), text)


def _outwards(keys: Keys) -> list[Keys]:
    return [keys[:length] for length in range(len(keys), 0, -1)]


def _dotted(keys: Keys) -> str:
    """
    >>> _dotted(("data", "train", 0, "path"))
    'data.train[0].path'
    """
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
