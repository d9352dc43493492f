"""Which third-party libraries run on an NPU, and what takes the place of those that do not."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Literal

from npukit.facts.data import load_yaml, longest_entry, make_row

Verdict = Literal["works", "adapter", "partial", "replace", "blocks"]


@dataclass(frozen=True)
class Library:
    """A library; the comments at the head of libraries.yaml say what each field means."""

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
        """Whether NPU machines do not have it: what asks for it gets no for an answer."""
        return self.needs_cuda or self.verdict in ("replace", "blocks")


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BETWEEN = re.compile(r"[\W_]+")


@functools.cache
def libraries() -> tuple[Library, ...]:
    """Every known library."""
    rows = ({"packages": row["imports"], **row} for row in load_yaml("libraries.yaml"))
    return tuple(make_row(Library, row) for row in rows)


@functools.cache
def own_devices() -> dict[str, str]:
    """The modules that take devices of their own, no NPU among them, and what to use instead where it is known.

    >>> own_devices()["onnxruntime"], own_devices()["faiss"]
    ('CANNExecutionProvider of onnxruntime-cann', '')
    """
    return {name: library.instead for library in libraries() if library.own_devices for name in library.imports}


@functools.lru_cache(maxsize=65536)
def named(text: str) -> Library | None:
    """The library of which a name or a short text speaks, in whole words.

    >>> named("HAS_FLASH_ATTN").name, named("FlashAttention").name, named("flashy")
    ('FlashAttention', 'FlashAttention', None)
    """
    pattern, by_name = _names()
    match = pattern.search(_HUMP.sub("_", text).lower())
    return by_name[_BETWEEN.sub("", match[0])] if match else None


@functools.cache
def _names() -> tuple[re.Pattern[str], dict[str, Library]]:
    """What finds a name in a text of lower case, and the library of each name without its underscores."""
    by_name = {name: library for library in libraries() for name in library.names}
    longest_first = sorted(by_name, key=len, reverse=True)
    words = "|".join(re.escape(name).replace("_", r"[\W_]?") for name in longest_first)
    pattern = re.compile(rf"(?<![^\W_])(?:{words})(?![^\W_])")
    return pattern, {name.replace("_", ""): library for name, library in by_name.items()}


def needs_cuda(module: str) -> Library | None:
    """The library without which a file that imports this module does not run, and which only CUDA machines have.

    >>> needs_cuda("triton.language").name, needs_cuda("tritonclient")
    ('Triton', None)
    """
    library = imported(module)
    return library if library and library.needs_cuda else None


def called(name: str) -> Library | None:
    """The library of a name in the list itself.

    >>> called("CuPy").imports
    ('cupy', 'cupyx')
    """
    return next((library for library in libraries() if library.name == name), None)


@functools.cache
def _by_import() -> dict[str, Library]:
    return {name: library for library in libraries() for name in library.imports}


def modules(*verdicts: Verdict) -> frozenset[str]:
    """The top-level modules of the libraries of these verdicts.

    >>> "flash_attn" in modules("replace")
    True
    """
    chosen = (library for library in libraries() if library.verdict in verdicts)
    return frozenset(name.split(".")[0] for library in chosen for name in library.imports)


@functools.cache
def _by_package() -> dict[str, Library]:
    return {normal(name): library for library in libraries() for name in library.packages}


def normal(package: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


@functools.lru_cache(maxsize=16384)
def imported(module: str) -> Library | None:
    """The library that a module belongs to: the longest name that fits.

    >>> imported("numba.cuda.random").name, imported("numba")
    ('Numba CUDA', None)
    """
    return longest_entry(_by_import(), module)


def packaged(package: str) -> Library | None:
    """The library that a name at the package index installs.

    >>> packaged("Flash_Attn").name
    'FlashAttention'
    """
    return _by_package().get(normal(package))
