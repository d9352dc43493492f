"""Which third-party libraries run on an NPU, and what replaces those that do not."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from npukit.facts.data import load_yaml, longest_entry, make_row

Verdict = Literal["works", "adapter", "partial", "replace", "blocks"]


@dataclass(frozen=True)
class Library:
    """A library. The comments at the head of libraries.yaml explain the fields."""

    name: str
    imports: tuple[str, ...]
    verdict: Verdict
    why: str
    packages: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    needs_cuda: bool = False
    own_devices: bool = False
    instead: str = ""
    needs: str = ""
    since: str = ""

    @property
    def is_missing(self) -> bool:
        """Whether NPU machines do not have the library, so that checks for it are false."""
        return self.needs_cuda or self.verdict in ("replace", "blocks")


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = re.compile(r"[\W_]+")


@functools.cache
def libraries() -> tuple[Library, ...]:
    """All known libraries."""
    rows = ({"packages": row["imports"], **row} for row in load_yaml("libraries.yaml"))
    return tuple(make_row(Library, row) for row in rows)


@functools.cache
def own_devices() -> dict[str, str]:
    """The modules with their own kinds of devices, none of them an NPU, and the replacement if one is known.

    >>> own_devices()["onnxruntime"], own_devices()["faiss"]
    ('CANNExecutionProvider of onnxruntime-cann', '')
    """
    return {name: library.instead for library in libraries() if library.own_devices for name in library.imports}


@functools.lru_cache(maxsize=65536)
def named(text: str) -> Library | None:
    """The library that a name or a short text mentions as a whole word.

    >>> named("HAS_FLASH_ATTN").name, named("FlashAttention").name, named("flashy")
    ('FlashAttention', 'FlashAttention', None)
    """
    pattern, by_name = _names()
    match = pattern.search(_HUMP.sub("_", text).lower())
    return by_name[_BETWEEN.sub("", match[0])] if match else None


@functools.cache
def _names() -> tuple[re.Pattern[str], dict[str, Library]]:
    """A pattern that finds names in lower-case text, and the library of each name without underscores."""
    by_name = {name: library for library in libraries() for name in library.names}
    longest_first = sorted(by_name, key=len, reverse=True)
    words = "|".join(re.escape(name).replace("_", r"[\W_]?") for name in longest_first)
    pattern = re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])")
    return pattern, {name.replace("_", ""): library for name, library in by_name.items()}


def needs_cuda(module: str) -> Library | None:
    """The CUDA-only library without which a file that imports this module cannot run.

    >>> needs_cuda("triton.language").name, needs_cuda("tritonclient")
    ('Triton', None)
    """
    library = imported(module)
    return library if library and library.needs_cuda else None


def called(name: str) -> Library | None:
    """The library with this name in the data.

    >>> called("CuPy").imports
    ('cupy', 'cupyx')
    """
    return next((library for library in libraries() if library.name == name), None)


@functools.cache
def _by_import() -> dict[str, Library]:
    return {name: library for library in libraries() for name in library.imports}


def modules(*verdicts: Verdict) -> frozenset[str]:
    """The top-level modules of the libraries with these verdicts.

    >>> "flash_attn" in modules("replace")
    True
    """
    chosen = (library for library in libraries() if library.verdict in verdicts)
    return frozenset(name.split(".")[0] for library in chosen for name in library.imports)


@functools.cache
def _by_package() -> dict[str, Library]:
    return {normal(name): library for library in libraries() for name in library.packages}


def normal(package: str) -> str:
    """A package name in the package index's normal form."""
    return re.sub(r"[-_.]+", "-", package).lower()


@functools.lru_cache(maxsize=16384)
def imported(module: str) -> Library | None:
    """The library that a module belongs to: the longest matching name.

    >>> imported("numba.cuda.random").name, imported("numba")
    ('Numba CUDA', None)
    """
    return longest_entry(_by_import(), module)


def packaged(package: str) -> Library | None:
    """The library that a package of the package index installs.

    >>> packaged("Flash_Attn").name
    'FlashAttention'
    """
    return _by_package().get(normal(package))
