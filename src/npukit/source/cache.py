"""Caches of facts about a project's files, which are cleared before a project is read again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_empty: list[Callable[[], None]] = []


def per_project(maxsize: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Cache the results of a function that reads files, until `forget` is called.

    >>> @per_project(maxsize=1024)
    ... def top_imports(path: Path) -> list[str]: ...
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        cached = lru_cache(maxsize=maxsize)(function)
        _empty.append(cached.cache_clear)
        return cached  # type: ignore[return-value]

    return decorate


def forget() -> None:
    """Clear these caches, because files may have changed."""
    for empty in _empty:
        empty()
