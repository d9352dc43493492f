"""Find the tensors in a batch of any structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors in a tensor, or in nested mappings, lists and tuples, each with its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{number}]")


def row_count(batch: Any) -> int | None:
    """The length of the first tensor that has a dimension."""
    return next((len(value) for _, value in named_tensors(batch) if value.dim()), None)
