"""Turns what a user wrote into a valid configuration, or into a message for each mistake."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from npukit.llm.config.names import OptionNames
from npukit.llm.config.nearest import nearest
from npukit.llm.config.raw_config import MISSING, Keys, Mistake, RawConfig
from npukit.llm.config.schema import Option, choices, describe, is_choice, options, parts, section, shown
from npukit.train.options import FrozenOptions

T = TypeVar("T", bound=FrozenOptions)
SHOWN = 6  # keys in a message
NO_SPACE = re.compile(r"\w+:\S.*")  # YAML reads it as one word


def validate(raw: RawConfig, schema: type[T], names: OptionNames) -> tuple[T | None, list[Mistake]]:
    """Return the valid part of the configuration, and the mistakes."""
    return _Validation(raw, schema, names).run()


class _Validation(Generic[T]):
    def __init__(self, raw: RawConfig, schema: type[T], names: OptionNames) -> None:
        self.raw, self.schema, self.names = raw, schema, names
        self.options = options(schema)

    def run(self) -> tuple[T | None, list[Mistake]]:
        raw = self.raw
        mistakes = [*self._take_for_what_was_meant(), *self._misplaced_booleans()]
        try:
            return self.schema.model_validate(raw.values), mistakes
        except ValidationError as failure:
            errors = _innermost([(_keys(error, raw.values), error) for error in failure.errors()])
        mistakes += [raw.mistake(keys, self._sentence(keys, error)) for keys, error in errors.items()]
        try:
            return self.schema.model_validate(self._completed(_without(raw.values, list(errors)))), mistakes
        except ValidationError:
            return None, mistakes

    def _take_for_what_was_meant(self) -> list[Mistake]:
        """Report misspelt keys and correct them, so that the right key is not reported as missing too."""
        mistakes = self._misspelt((), self.raw.values)
        for name, values in list(self.raw.values.items()):
            if isinstance(values, dict) and name in self.schema.model_fields:
                mistakes += self._misspelt((name,), values)
        return mistakes

    def _misspelt(self, level: Keys, values: dict[str, Any]) -> list[Mistake]:
        mistakes = []
        known = self._inside(level)
        for key in [key for key in values if key not in known]:
            meant = nearest(key, known, cutoff=0.75)
            if meant and meant not in values:
                mistakes.append(self.raw.mistake((*level, key), self._unknown((*level, key))))
                self.raw.rename((*level, key), (*level, meant))
        return mistakes

    def _sentence(self, keys: Keys, error: ErrorDetails) -> str:
        name = self.raw.name(keys)
        if error["type"] == "extra_forbidden":
            return self._unknown(keys)
        option = self._option_of(keys)
        if error["type"] == "missing" and isinstance(error["loc"][-1], str):
            what = option.meaning if option else f"write {self._required(str(keys[-1]))} below it"
            return f"{name} is missing: {what}."
        if error["type"] == "value_error":
            return f"{name}: {error['ctx']['error']}."
        value = _at(self.raw.values, keys)
        if option is None or (option.key != ".".join(str(key) for key in keys if isinstance(key, str))):
            space = " (write a space after the colon)" if NO_SPACE.fullmatch(str(value)) else ""
            inside = self._inside(keys)
            some = ", ".join(inside[:SHOWN]) + ", …" * (len(inside) > SHOWN)
            return f"{name} must be a group of keys ({some}), not {shown(value)}{space}."
        return _wrong_value(name, option, value)

    def _unknown(self, keys: Keys) -> str:
        """Return a sentence about an unknown option, with the most similar one or the right place."""
        above = ".".join(str(key) for key in keys[:-1])
        hint = self.names.suggestion(str(keys[-1]), above, self._inside(keys[:-1]), self.options)
        return f"there is no option {self.raw.name(keys)}{hint}"

    def _inside(self, keys: Keys) -> list[str]:
        """Return the options below `keys`."""
        model: type[FrozenOptions] = self.schema
        for key in keys:
            if isinstance(key, int):
                continue
            field = model.model_fields.get(key)
            below = [inner for part in parts(field.annotation) if (inner := section(part))] if field else []
            if below:
                model = below[0]
        return list(model.model_fields)

    def _option_of(self, keys: Keys) -> Option | None:
        """Return the option that `keys` leads to, or the one that contains it."""
        path = [str(key) for key in keys if isinstance(key, str)]
        for end in range(len(path), 0, -1):
            # Options of data sets are described once, under data.train.
            for key in (".".join(path[:end]), ".".join(["data", "train", *path[2:end]])):
                if key in self.options and (key.startswith(path[0]) or path[0] == "data"):
                    return self.options[key]
        return None

    def _misplaced_booleans(self) -> Iterator[Mistake]:
        """Refuse true and false for numbers: Python would read them as 1 and 0."""
        for keys, value in _leaves(self.raw.values, ()):
            option = self._option_of(keys)
            if isinstance(value, bool) and option and bool not in parts(option.field.annotation):
                types = set(parts(option.field.annotation)) & {int, float}
                if types:
                    yield self.raw.mistake(keys, _wrong_value(self.raw.name(keys), option, value))

    def _required(self, name: str) -> str:
        """Return the first required option of a group."""
        inside = (
            option for key, option in self.options.items() if key.startswith(f"{name}.") and option.field.is_required()
        )
        return next(inside).key.split(".")[1]

    def _completed(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration with placeholders for missing values, so that the rest can be validated."""
        for name, field in self.schema.model_fields.items():
            if field.is_required():
                group = values.setdefault(name, {})
                if isinstance(group, dict):
                    group.setdefault(self._required(name), MISSING)
        return values


def _wrong_value(name: str, option: Option, value: Any) -> str:
    """Return a sentence about a wrong value: what is allowed, what was written, and what was probably meant."""
    words = choices(option.field)
    near = nearest(str(value), words) if words else None
    expected = f"one of {', '.join(words)}" if is_choice(option.field) else describe(option.field)
    return f"{name} must be {expected}, not {shown(value)}" + (f": did you mean {near}?" if near else ".")


def _keys(error: ErrorDetails, values: Any) -> Keys:
    """Return the keys of an error, without pydantic's names of union members."""
    keys: list[str | int] = []
    for item in error["loc"]:
        below = _at(values, (item,))
        is_missing = error["type"] == "missing" and item == error["loc"][-1] and isinstance(item, str)
        if below is None and not is_missing and not _holds(values, item):
            continue
        values = below
        keys.append(item)
    return tuple(keys)


def _innermost(errors: list[tuple[Keys, ErrorDetails]]) -> dict[Keys, ErrorDetails]:
    """Keep one error per key. An error inside a group replaces that of the group."""
    result: dict[Keys, ErrorDetails] = {}
    for keys, error in errors:
        if not any(other != keys and other[: len(keys)] == keys for other, _ in errors):
            result.setdefault(keys, error)
    return result


def _leaves(node: Any, above: Keys) -> Iterator[tuple[Keys, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*above, key))
    else:
        yield above, node


def _without(values: dict[str, Any], wrong: list[Keys]) -> dict[str, Any]:
    rest = copy.deepcopy(values)
    for keys in wrong:
        around = _at(rest, keys[:-1])
        if isinstance(around, dict):
            around.pop(keys[-1], None)
    return rest


def _holds(node: Any, key: str | int) -> bool:
    return isinstance(node, dict) and key in node


def _at(node: Any, keys: Keys) -> Any:
    for key in keys:
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list | tuple) and isinstance(key, int) and key < len(node):
            node = node[key]
        else:
            return None
    return node
