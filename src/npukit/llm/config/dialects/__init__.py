"""Configurations as other tools' users write them: recognised, and translated into ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from npukit.llm.config.dialects.llama_factory import LLAMA_FACTORY
from npukit.llm.config.dialects.swift import SWIFT
from npukit.llm.config.dialects.table import Dialect
from npukit.llm.config.dialects.values import Refused, Values
from npukit.llm.config.given import DEFAULT, Given, Mistake, nearest
from npukit.llm.config.options import Config
from npukit.llm.config.validation import MISSING

DIALECTS = (LLAMA_FACTORY, SWIFT)


def recognise(values: Mapping[str, Any], flags: bool) -> Dialect | None:
    """Whose keys these are; None is our own. Flags without a dot can only be another tool's.

    >>> recognise({"model_name_or_path": "Qwen/Qwen2-7B", "stage": "sft"}, flags=False).name
    'LLaMA-Factory'
    """
    if any(isinstance(value, dict) and key in Config.model_fields for key, value in values.items()):
        return None
    score = {dialect.name: sum(dialect.row(key) is not None for key in values) for dialect in DIALECTS}
    if not flags and not any(score.values()):
        return None
    # Between equals flags are ms-swift's, a file LLaMA-Factory's.
    order = reversed(DIALECTS) if flags else DIALECTS
    return max(order, key=lambda dialect: score[dialect.name]) if values else None


class Translator:
    """Turns what is given in a dialect into our own configuration, with notes and mistakes."""

    def __init__(self, dialect: Dialect, given: Given, values: Values) -> None:
        self.dialect, self.given, self.values = dialect, given, values
        self.ours = Given(source=given.source, theirs=_names(dialect))
        self.mistakes: list[Mistake] = []

    def translate(self) -> None:
        """Every key is translated, named as changing nothing, or refused; none is dropped silently."""
        for key, value in list(self.given.values.items()):
            self._look_at(key, value)
        self._copy()
        for name, function in self.dialect.functions.items():
            keys = [key for key, row in self.dialect.rows.items() if row.by == name]
            try:
                for ours, value in function(self.values).items():
                    self._set(ours, value, keys)
            except Refused as refused:
                self._mistake(refused.key, refused.text)
                if name == "datasets":  # they are given, if wrongly
                    self._set("data.train", MISSING, keys)

    def _copy(self) -> None:
        """The keys whose values can be taken as they are; a default gives way to what is written."""
        copied: dict[str, str] = {}
        for key, row in self.dialect.rows.items():
            is_given = key in self.given.values
            if not row.to or row.by or not (is_given or "default" in row.model_fields_set):
                continue
            before = copied.get(row.to[0])
            if is_given and before and self.given.values[before] != self.given.values[key]:
                self._mistake(
                    key, f"{self._written(before)} and {self._written(key)} say different things: remove one."
                )
            if is_given or not before:
                self._set(row.to[0], self.values.get(key), [key])
            if is_given:
                copied[row.to[0]] = key

    def _look_at(self, key: str, value: Any) -> None:
        row = self.dialect.row(key)
        if row is None:
            self._mistake(key, _unknown(self._written(key), key, self.dialect))
            self._take_for(nearest(key, self.dialect.keys, cutoff=0.75), key)
        elif row.unsupported and not row.asks_nothing(value):
            self._mistake(key, f"{self._written(key)} is not supported: {row.unsupported}.")
        elif row.ignored:
            self.values.notes.append(f"{key}: {row.ignored}")

    def _take_for(self, meant: str | None, key: str) -> None:
        """Go on as if the key had been written right, so that its absence is no mistake besides."""
        if meant and meant not in self.given.values:
            self.given.set((meant,), self.given.values[key], self.given.place((key,)), self._written(key))

    def _set(self, ours: str, value: Any, keys: Collection[str]) -> None:
        written = [key for key in keys if key in self.given.values]
        if written:
            # Of several keys that make one option, the one that says it, or else most, is named.
            said = {key: self.given.values[key] for key in written}
            key = max(written, key=lambda each: (said[each] == value, bool(said[each]), said[each] is not True))
            place, name = self.given.place((key,)), self._written(key)
        else:
            place, name = f"{self.dialect.name}{DEFAULT}", ours
        self.ours.set(tuple(ours.split(".")), value, place, name)

    def _written(self, key: str) -> str:
        return self.given.names.get((key,), key)

    def _mistake(self, key: str, text: str) -> None:
        self.mistakes.append(self.given.mistake((key,), text))


def _names(dialect: Dialect) -> dict[str, str]:
    """What they call our options."""
    return {ours: key for key, row in reversed(list(dialect.rows.items())) for ours in row.to[:1]}


def _unknown(written: str, key: str, dialect: Dialect) -> str:
    if near := nearest(key, dialect.keys, cutoff=0.75):
        return f"{dialect.name} has no {written}: did you mean {near}?"
    if name := translated_name(key):
        return f"{dialect.name} has no {written}: {name}."
    near = nearest(key, dialect.keys)
    return f"{dialect.name} has no {written}" + (f": did you mean {near}?" if near else ".")


def translated_name(key: str) -> str | None:
    """Whose key it is, and what it is called here."""
    for dialect in DIALECTS:
        row = dialect.row(key)
        if row and row.to:
            return f"it is {dialect.name}'s name of {row.to[0]}"
        if row:
            return f"it is {dialect.name}'s, and {row.ignored or row.unsupported}"
    return None
