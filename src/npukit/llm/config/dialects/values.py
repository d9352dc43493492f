"""The values of another tool's keys, for the functions that translate them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npukit.llm.config.nearest import nearest
from npukit.llm.config.schema import shown


class RefusedValue(Exception):
    """A value that cannot be translated, with its key and the reason."""

    def __init__(self, key: str, text: str) -> None:
        self.key, self.text = key, text


@dataclass
class Values:
    """The written values or the tool's defaults, and notes for the user."""

    explicit: Mapping[str, Any]
    defaults: Mapping[str, Any]
    environ: Mapping[str, str]
    verb: str  # those of the command
    ranks: int  # those of the whole job
    notes: list[str] = field(default_factory=list)

    def get(self, key: str, otherwise: Any = None) -> Any:
        """Return the value of a key, its default, or None."""
        value = self.explicit.get(key)
        value = self.defaults.get(key) if value is None else value
        return otherwise if value is None else value

    def flag(self, key: str, otherwise: bool = False) -> bool:
        """Return the value as a boolean."""
        value = self.get(key, otherwise)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise RefusedValue(key, f"{key} must be true or false, not {shown(value)}.")
        return value

    def number(self, key: str, otherwise: float) -> float:
        """Return the value as a number."""
        value = self.get(key, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedValue(key, f"{key} must be a number, not {shown(value)}.")
        return value

    def words(self, key: str) -> list[str]:
        """Return the value as names: a list, or comma-separated text."""
        value = self.get(key, [])
        several = value.split(",") if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(word, str | int | float) for word in several):
            raise RefusedValue(key, f"{key} must be names, as `a,b` or a list, not {shown(value)}.")
        return [str(word).strip() for word in several if str(word).strip()]

    def choice(self, key: str, choices: Mapping[str, Any] | Sequence[str], otherwise: str | bool) -> Any:
        """Return the meaning of one of a few words. In a sequence, each word means itself."""
        choices = choices if isinstance(choices, Mapping) else {word: word for word in choices}
        value = self.get(key, otherwise)
        word = "no" if value is False else str(value)  # YAML reads `no` as false
        if word in choices:
            return choices[word]
        near = nearest(word, choices)
        hint = f": did you mean {near}?" if near else "."
        raise RefusedValue(key, f"{key} must be one of {', '.join(choices)}, not {shown(value)}{hint}")
