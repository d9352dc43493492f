"""All options with their types, defaults and meanings, from the fields of a configuration class."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from npukit.train.options import Called, Choices, FrozenOptions, Needs, When

T = TypeVar("T")
WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    type(None): "none",
}


@dataclass(frozen=True)
class Option:
    """One option."""

    key: str
    field: FieldInfo
    group: type[FrozenOptions]

    @property
    def type(self) -> str:
        """The allowed values in words."""
        return describe(self.field)

    @property
    def default(self) -> str:
        """The default as it is written in YAML, or "required"."""
        return "required" if self.field.is_required() else plain(self.field.default)

    @property
    def meaning(self) -> str:
        """The description, with the meaning of each choice."""
        words = known.words() if (known := _of_kind(Choices, self.field.metadata)) else {}
        return (self.field.description or "") + ": " * bool(words) + "; ".join(words.values())

    @property
    def when(self) -> When | None:
        """The values of another option with which this one has an effect, or None."""
        return _of_kind(When, self.field.metadata) or self.group.WHEN

    @property
    def needs(self) -> Needs | None:
        """The packages that some of its values need, or None."""
        return _of_kind(Needs, self.field.metadata)

    @property
    def called(self) -> Called:
        """Its names in other tools."""
        return _of_kind(Called, self.field.metadata) or self.group.CALLED


@functools.cache
def options(schema: type[FrozenOptions]) -> dict[str, Option]:
    """Return all options by dotted key. Those of a data set are below `data.train`.

    >>> options(Config)["tuning.rank"].default
    '8'
    """
    return {option.key: option for option in _options(schema, "")}


def _options(schema: type[FrozenOptions], above: str) -> Iterator[Option]:
    for name, field in schema.model_fields.items():
        inner = section(field.annotation)
        if inner is not None and not field.description:
            yield from _options(inner, f"{above}{name}.")
            continue
        yield Option(f"{above}{name}", field, schema)
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, FrozenOptions) and name != "validation":
                yield from _options(part, f"{above}{name}.")


def section(annotation: Any) -> type[FrozenOptions] | None:
    """Return the class of the options below a key, or None if the key is not a group."""
    is_section = isinstance(annotation, type) and issubclass(annotation, FrozenOptions)
    return annotation if is_section else None


def parts(annotation: Any) -> list[Any]:
    """Return all types in an annotation."""
    if typing.get_origin(annotation) is Literal:
        return [annotation]
    below = [part for argument in typing.get_args(annotation) for part in parts(argument)]
    return below or [annotation]


def choices(field: FieldInfo) -> list[str]:
    """Return the words among the allowed values."""
    if known := _of_kind(Choices, field.metadata):
        return list(known.words())
    literals = [part for part in parts(field.annotation) if typing.get_origin(part) is Literal]
    return [str(word) for literal in literals for word in typing.get_args(literal)]


def is_choice(field: FieldInfo) -> bool:
    """Return whether only such words are allowed."""
    return _of_kind(Choices, field.metadata) is not None or typing.get_origin(field.annotation) is Literal


def _of_kind(kind: type[T], metadata: list[Any]) -> T | None:
    return next((item for item in metadata if isinstance(item, kind)), None)


def describe(field: FieldInfo) -> str:
    """Return the allowed values of a field in words, such as "a whole number above 0 or epoch"."""
    return _describe(field.annotation, field.metadata)


def _describe(annotation: Any, limits: list[Any]) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if known := _of_kind(Choices, limits):
        return " | ".join(known.words())
    if origin is Annotated:
        return _describe(arguments[0], [*arguments[1:]])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(
            _describe(argument, []) for argument in sorted(arguments, key=lambda argument: argument is type(None))
        )
    if origin is Literal:
        return " | ".join(str(word) for word in arguments)
    if origin is tuple and arguments[-1] is not ...:
        return f"a list of {len(arguments)}: {_describe(arguments[0], [])} each"
    if origin is tuple:
        return f"a list of {_plural(arguments[0])}"
    if origin is dict:
        return "a mapping of names"
    if isinstance(annotation, type) and issubclass(annotation, FrozenOptions):
        return f"{{{', '.join(annotation.model_fields)}}}"
    return WORDS[annotation] + _range([bound for limit in limits for bound in getattr(limit, "metadata", [limit])])


def _plural(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, FrozenOptions):
        return annotation.PLURAL
    plain = typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    return {str: "names", Path: "paths", float: "numbers"}.get(plain) or _describe(annotation, [])


def _range(limits: list[Any]) -> str:
    above = next((limit.gt for limit in limits if isinstance(limit, Gt)), None)
    least = next((limit.ge for limit in limits if isinstance(limit, Ge)), None)
    most = next((limit.le for limit in limits if isinstance(limit, Le)), None)
    if least is not None and most is not None:
        return f" from {least} to {most}"
    words = [f" above {above}"] * (above is not None) + [f" of at least {least}"] * (least is not None)
    return " and".join([*words, *[f" up to {most}"] * (most is not None)])


def plain(value: Any) -> str:
    """Return a value as it is written in YAML."""
    if value is None or value == () or value == {}:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(plain(item) for item in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(value: Any) -> str:
    """Return a value for a message."""
    if isinstance(value, dict):
        return "a group of keys"
    if isinstance(value, list | tuple):
        return "a list" if len(value) > 4 else plain(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    return "nothing" if value is None else plain(value)
