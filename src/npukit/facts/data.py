"""Read npukit's own YAML files and turn their rows into typed objects."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

_FOLDER = Path(__file__).parent
Row = TypeVar("Row")


@functools.cache
def load_yaml(file: str | Path) -> Any:
    """The content of one of our YAML files: a name in this folder, or a full path.

    The result is cached and must not be modified.

    >>> load_yaml("cards.yaml")[0]["name"]
    '910A'
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # five times as fast, if PyYAML was built with it
    return yaml.load((_FOLDER / file).read_text(encoding="utf-8"), Loader=loader)


def load_rows(file: str | Path, kind: type[Row]) -> list[Row]:
    """The rows of such a file as frozen dataclasses, with tuples for lists.

    >>> load_rows("removed_names.yaml", RemovedName)[0].name
    'torch._six'
    """
    return [make_row(kind, row) for row in load_yaml(file)]


def longest_entry(table: Mapping[str, Row], name: str, least: int = 1) -> Row | None:
    """The entry with the longest prefix of a dotted name, of at least this many parts.

    >>> longest_entry({"torch.cuda": 1, "torch.cuda.nvtx": 2}, "torch.cuda.nvtx.range_push")
    2
    """
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), least - 1, -1))
    return next((table[known] for known in names if known in table), None)


def make_row(kind: type[Row], row: dict[str, Any]) -> Row:
    """A row as a dataclass, with tuples for lists."""
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in row.items()})
