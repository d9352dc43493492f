"""Recognises other tools' configurations and translates them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from npukit.llm.config.dialects.table import Dialect, DialectRow
from npukit.llm.config.dialects.values import RefusedValue, Values
from npukit.llm.config.names import OptionNames
from npukit.llm.config.nearest import nearest
from npukit.llm.config.raw_config import MISSING, Mistake, Origin, RawConfig
from npukit.llm.config.schema import shown


def recognise(keys: Collection[str], dialects: Sequence[Dialect]) -> Dialect | None:
    """Return the dialect that knows most of these keys, or None if none knows half of them.

    >>> recognise({"model_name_or_path": "Qwen/Qwen2-7B", "stage": "sft"}, DIALECTS).name
    'LLaMA-Factory'
    """
    score = {dialect.name: sum(map(dialect.knows, keys)) for dialect in dialects}
    best = max(dialects, key=lambda dialect: score[dialect.name])
    return best if score[best.name] and score[best.name] * 2 >= len(keys) else None


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class Translator:
    """Translates the keys of a dialect into npukit's configuration, with notes and mistakes."""

    def __init__(self, dialect: Dialect, raw: RawConfig, values: Values, names: OptionNames) -> None:
        self.dialect, self.raw, self.values, self.names = dialect, raw, values, names
        self.ours = RawConfig(source=raw.source, theirs=dialect.names)
        self.mistakes: list[Mistake] = []
        self._ignored: dict[str, list[str]] = {}  # keys without effect, by reason

    def translate(self) -> None:
        """Translate each key, note that it has no effect, or refuse it. No key is dropped silently."""
        self._flatten()
        self._rename()
        for key, value in list(self.raw.values.items()):
            self._look_at(key, value)
        self.values.notes += [f"{', '.join(keys)}: {reason}" for reason, keys in self._ignored.items()]
        self._copy()
        for name, function in self.dialect.functions.items():
            keys = [key for key, row in self.dialect.rows.items() if row.by == name]
            try:
                for ours, value in function(self.values).items():
                    self._set(ours, value, self._written_for(ours) or keys)
            except RefusedValue as refused:
                self._mistake(refused.key, refused.text)
                if name == "datasets":  # they are given, even if they are wrong
                    self._set("data.train", MISSING, keys)

    def _flatten(self) -> None:
        """Flatten groups, so that their keys become "group.key"."""
        for group in self.dialect.groups & set(self.raw.values):
            below = self.raw.values.pop(group)
            if not isinstance(below, dict | None):
                self._mistake(group, f"{group} must be keys and values, as {{name: …}}, not {shown(below)}.")
                continue
            for key, value in (below or {}).items():
                self.raw.set((f"{group}.{key}",), value, self.raw.place((group, key)))

    def _rename(self) -> None:
        """Rename the keys of earlier releases."""
        renamed: list[str] = []
        keys = [key for key in self.raw.values if (row := self.dialect.row(key)) and row.renamed]
        for key in sorted(keys, key=lambda key: bool(self.dialect.rows[key].ignored)):
            row = self.dialect.rows[key]
            place, name, value = self.raw.place((key,)), self._name_of(key), row.value_now(self.raw.values[key])
            before = self.raw.values.get(row.renamed)
            if row.ignored and (before is not None or value == self.raw.values[key]):
                if before is None:
                    self._no_value(key, row)
                continue  # both names are given, and the current one wins
            if row.adds and before is not None and value is not None:
                value = [*_several(before), *_several(value)]
            elif before is not None and before != value:
                self._mistake(key, f"{name} and {self._name_of(row.renamed)} say different things: remove one.")
                value = None
            if value is not None:
                self.raw.set((row.renamed,), value, place, name)
            del self.raw.values[key]
            renamed.append(f"{key} is {row.renamed} since {row.since}")
        if renamed:
            self.values.notes.append(f"keys of earlier releases: {', '.join(renamed)}")

    def _no_value(self, key: str, row: DialectRow) -> None:
        """Report a renamed key whose value does not determine that of the new key."""
        value, other = self.raw.values[key], self._name_of(row.renamed)
        self._mistake(key, f"{self._name_of(key)} {value} does not say which {row.renamed} is meant: give {other}.")
        self._set(self.dialect.rows[row.renamed].to[0], MISSING, [key])

    def _copy(self) -> None:
        """Copy the keys whose values need no translation. A written value takes precedence over a default."""
        copied: dict[str, str] = {}
        for key, row in self.dialect.rows.items():
            is_given = key in self.raw.values
            if not row.to or row.by or not (is_given or "default" in row.model_fields_set):
                continue
            before = copied.get(row.to[0])
            if is_given and before and self.raw.values[before] != self.raw.values[key]:
                self._mistake(
                    key, f"{self._name_of(before)} and {self._name_of(key)} say different things: remove one."
                )
            if is_given or not before:
                self._set(row.to[0], self._value(key, row), [key])
            if is_given:
                copied[row.to[0]] = key

    def _value(self, key: str, row: DialectRow) -> Any:
        """Return the translated value of a copied key."""
        try:
            if row.takes == "words":
                return self.values.words(key)
            if row.takes == "positive":
                number = self.values.number(key, 0)
                return number if number > 0 else None
        except RefusedValue as refused:
            self._mistake(refused.key, refused.text)
            return MISSING
        return row.value_now(self.values.get(key))

    def _look_at(self, key: str, value: Any) -> None:
        row = self.dialect.row(key)
        if row is None:
            self._mistake(key, self._unknown(key))
            self._take_for(nearest(key, self.dialect.keys, cutoff=0.75), key)
        elif row.unsupported and not row.asks_nothing(value):
            self._mistake(key, f"{self._name_of(key)} is not supported: {row.unsupported}.")
        elif row.ignored:
            self._ignored.setdefault(row.ignored, []).append(key)

    def _take_for(self, meant: str | None, key: str) -> None:
        """Continue as if the key had been correct, so that it is not reported as missing too."""
        if meant and meant not in self.raw.values:
            self.raw.set((meant,), self.raw.values[key], self.raw.place((key,)), self._name_of(key))

    def _written_for(self, ours: str) -> list[str]:
        """Return the written keys that mean an option, whichever function reads them."""
        return [key for key, row in self.dialect.rows.items() if ours in row.to and key in self.raw.values]

    def _set(self, ours: str, value: Any, keys: Collection[str]) -> None:
        written = [key for key in keys if key in self.raw.values]
        if written:
            # If several keys determine one option, name the one that decides.
            own = {key: self.raw.values[key] for key in written}
            key = max(written, key=lambda name: (own[name] == value, bool(own[name]), own[name] is not True))
            place, name = self.raw.place((key,)), self._name_of(key)
        else:
            place, name = Origin(self.dialect.name, is_default=True), ours
        self.ours.set(tuple(ours.split(".")), value, place, name)

    def _unknown(self, key: str) -> str:
        none = f"{self.dialect.name} has no {self._name_of(key)}"
        if near := nearest(key, self.dialect.keys, cutoff=0.75):
            return f"{none}: did you mean {near}?"
        if name := self.names.translated(key):
            return f"{none}: {name}."
        near = nearest(key, self.dialect.keys)
        return none + (f": did you mean {near}?" if near else ".")

    def _name_of(self, key: str) -> str:
        return self.raw.names.get((key,), key)

    def _mistake(self, key: str, text: str) -> None:
        self.mistakes.append(self.raw.mistake((key,), text))
