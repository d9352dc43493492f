"""The tables of other tools' keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from npukit.facts.data import load_yaml
from npukit.llm.config.dialects.values import Values
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options
from npukit.llm.config.use import Use
from npukit.train.options import Called, FrozenOptions

FOLDER = Path(__file__).parent
SCHEMAS: dict[str, type[FrozenOptions]] = {"training": Config, "use": Use}
Function = Callable[[Values], Mapping[str, Any]]


class DialectRow(BaseModel):
    """One key. The comments in training/transformers.yaml explain the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: tuple[str, ...] = ()
    by: str = ""
    default: Any = None
    ignored: str = ""
    unsupported: str = ""
    harmless: tuple[Any, ...] = ()
    renamed: str = ""
    since: str = ""
    values: Mapping[Any, Any] = {}
    values_in: str = ""
    adds: bool = False
    takes: Literal["", "words", "positive"] = ""

    @field_validator("to", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def value_now(self, value: Any) -> Any:
        """Return npukit's name of a value, or the name after a release renamed it. None means no effect."""
        known: Mapping[Any, Any] = named_values(self.values_in) if self.values_in else self.values
        now = known[value] if isinstance(value, str | int) and value in known else value
        return now[0] if isinstance(now, tuple) else now

    def asks_nothing(self, value: Any) -> bool:
        """Return whether the value has no effect."""
        return value in (None, False, "") or value in self.harmless


@dataclass(frozen=True)
class Dialect:
    """The configuration format of another tool."""

    name: str
    rows: Mapping[str, DialectRow]
    functions: Mapping[str, Function]

    def row(self, key: str) -> DialectRow | None:
        """Return the row of a key, which may be one that ends in *."""
        return row_of(key, self.rows)

    @functools.cached_property
    def groups(self) -> frozenset[str]:
        """The keys that are groups."""
        return frozenset(key.partition(".")[0] for key in self.rows if "." in key)

    def knows(self, key: str) -> bool:
        """Return whether a key of a file belongs to the tool."""
        return key in self.groups or self.row(key) is not None

    def defaults(self) -> dict[str, Any]:
        """The tool's defaults that are different from npukit's."""
        return {key: row.default for key, row in self.rows.items() if "default" in row.model_fields_set}

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """The tool's names of npukit's options."""
        return {ours: key for key, row in reversed(list(self.rows.items())) for ours in row.to[:1]}

    @property
    def keys(self) -> list[str]:
        """All keys that do not end in *."""
        return [key for key in self.rows if not key.endswith("*")]


def row_of(key: str, rows: Mapping[str, DialectRow]) -> DialectRow | None:
    """Return the row of a key in a table."""
    if key in rows:
        return rows[key]
    stems = [row for row in rows if row.endswith("*") and key.startswith(row[:-1])]
    return rows[max(stems, key=len)] if stems else None


@functools.cache
def named_values(section: str) -> dict[str, str | tuple[str, ...] | None]:
    """Return a section of a table of names in earlier releases. A tuple has one name for each hub.

    >>> named_values("training/swift_2:models")["qwen2-7b-instruct"]
    ('qwen/Qwen2-7B-Instruct', 'Qwen/Qwen2-7B-Instruct')
    """
    file, _, name = section.partition(":")
    rows = load_yaml(FOLDER / f"{file}.yaml")[name]
    return {key: tuple(value) if isinstance(value, list) else value for key, value in rows.items()}


@functools.cache
def load(*names: str) -> dict[str, DialectRow]:
    """Return the rows of these tables. Later tables override earlier ones.

    >>> load("training/transformers", "training/swift")["lora_rank"].to
    ('tuning.rank',)
    """
    rows: dict[str, DialectRow] = {}
    for name in names:
        rows |= _declared(name)
        rows |= {key: DialectRow(**row) for key, row in load_yaml(FOLDER / f"{name}.yaml").items()}
    return rows


def _declared(table: str) -> dict[str, DialectRow]:
    """Return the keys that are just other names of options, from the options' declarations."""
    purpose, tool = table.split("/")
    rows: dict[str, DialectRow] = {}
    if tool not in Called.__dataclass_fields__:
        return rows
    for key, option in options(SCHEMAS[purpose]).items():
        is_of_training = purpose == "use" and key.startswith(("model.", "data.run."))
        if not is_of_training:
            rows |= {name: DialectRow(to=(key,)) for name in option.called.by(tool, key.rpartition(".")[2])}
    return rows
