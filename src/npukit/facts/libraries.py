"""Which third-party libraries run on an NPU, and what takes the place of those that do not."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["works", "adapter", "partial", "replace", "blocks"]


@dataclass(frozen=True)
class Library:
    """A library; the comments at the head of libraries.yaml say what each field means."""

    name: str
    imports: tuple[str, ...]
    verdict: Verdict
    why: str
    packages: tuple[str, ...] = ()
    instead: str = ""
    needs: str = ""
    since: str = ""


@functools.cache
def libraries() -> tuple[Library, ...]:
    """Every known library."""
    return tuple(
        Library(**{**row, "imports": tuple(row["imports"]), "packages": tuple(row.get("packages", row["imports"]))})
        for row in _rows("libraries.yaml")
    )


@functools.cache
def own_devices() -> dict[str, str]:
    """The modules that take devices of their own, no NPU among them, and what to use instead where it is known.

    >>> own_devices()["onnxruntime"], own_devices()["faiss"]
    ('Use CANNExecutionProvider of onnxruntime-cann.', '')
    """
    return {module: row.get("instead", "") for row in _rows("own_devices.yaml") for module in row["imports"]}


@functools.cache
def for_cuda(kind: str) -> re.Pattern[str]:
    """Matches the full names of the modules of a kind in cuda_modules.yaml, which only CUDA machines can use.

    >>> bool(for_cuda("needed").match("triton.language")), bool(for_cuda("needed").match("tritonclient"))
    (True, False)
    """
    modules = "|".join(name.replace(".", r"\.") for name in _rows("cuda_modules.yaml")[kind])
    return re.compile(rf"(?:{modules})(?:\.|$)")


def _rows(name: str) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(__file__).with_name(name).read_text(encoding="utf-8"), Loader=loader)


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


def imported(module: str) -> Library | None:
    """The library that a module belongs to: the longest name that fits.

    >>> imported("numba.cuda.random").name, imported("numba")
    ('Numba CUDA', None)
    """
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if library := _by_import().get(".".join(parts[:length])):
            return library
    return None


def packaged(package: str) -> Library | None:
    """The library that a name at the package index installs.

    >>> packaged("Flash_Attn").name
    'FlashAttention'
    """
    return _by_package().get(normal(package))
