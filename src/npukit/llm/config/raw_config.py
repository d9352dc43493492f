"""A configuration as it was written: a tree of values, with the place where each was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from npukit.errors import NpukitError

Keys = tuple[str | int, ...]  # ("data", "train", 0, "path")


MISSING = "(missing)"  # stands in for what was not given, so that the rest can be looked at


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: a line of a file, the command line, a variable; or another tool's default."""

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
    """One thing that is wrong, where, and what to do about it."""

    place: Origin
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class Mistakes(NpukitError):
    """All that is wrong with a configuration, at once."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.place.line or 0)
        lines = [str(mistake) for mistake in self.mistakes]
        super().__init__(lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} mistakes:", *lines]))


OPTION = re.compile(r"\b[a-z]+\.[a-z_]+\b(?!=)")  # KEY=VALUE, a word for the command line, is the same in all dialects


@dataclass
class RawConfig:
    """A tree of values, where each was written, and by which name if that is not its key."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Keys, Origin] = field(default_factory=dict)
    names: dict[Keys, str] = field(default_factory=dict)
    source: str = "command line"
    theirs: dict[str, str] = field(default_factory=dict)  # another tool's name of an option, where it was used

    def has(self, keys: Keys) -> bool:
        """Whether somebody wrote it."""
        return keys in self.places and not self.places[keys].is_default

    def set(self, keys: Keys, value: Any, place: Origin, name: str = "") -> None:
        """Write `value` at `keys`, whatever was there or above it."""
        node = self.values
        for key in keys[:-1]:
            if not isinstance(node.get(str(key)), dict):
                node[str(key)] = {}
            node = node[str(key)]
        node[str(keys[-1])] = value
        self.places[keys] = place
        self.names[keys] = name or ".".join(map(str, keys))

    def rename(self, old: Keys, new: Keys) -> None:
        """Move a value, with its place and the name that the user gave it."""
        node: Any = self.values
        for key in old[:-1]:
            node = node[key]
        names = {keys: self.name(keys) for keys in [*self.places, old] if keys[: len(old)] == old}
        node[str(new[-1])] = node.pop(old[-1])
        for keys, name in names.items():
            moved = (*new, *keys[len(old) :])
            self.places[moved], self.names[moved] = self.place(keys), name

    def set_default(self, keys: Keys, value: Any, place: Origin) -> None:
        """The same, unless something is there already."""
        node: Any = self.values
        for key in keys:
            if not isinstance(node, dict):
                return
            node = node.get(key, {})
        if node == {}:
            self.set(keys, value, place)

    def place(self, keys: Keys) -> Origin:
        """Where `keys`, or the nearest thing around it, was written."""
        return next((self.places[above] for above in _outwards(keys) if above in self.places), Origin(self.source))

    def name(self, keys: Keys) -> str:
        """What the user calls it."""
        return next((self.names[above] for above in _outwards(keys) if above in self.names), _dotted(keys))

    def mistake(self, keys: Keys, text: str) -> Mistake:
        """`text` is about `keys`; it names options as the user does."""
        return Mistake(self.place(keys), self.worded(text))

    def worded(self, text: str) -> str:
        """`text` with options called what the user calls them."""
        return OPTION.sub(lambda name: self.theirs.get(name[0], name[0]), text)


def _outwards(keys: Keys) -> list[Keys]:
    return [keys[:length] for length in range(len(keys), 0, -1)]


def _dotted(keys: Keys) -> str:
    """
    >>> _dotted(("data", "train", 0, "path"))
    'data.train[0].path'
    """
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
