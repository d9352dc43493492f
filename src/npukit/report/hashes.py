"""SHA-256 checksums, which are stored with files and checked before the files are used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_AT_ONCE = 8  # files hashed in parallel; hashing releases the GIL
_BLOCK = 2**24


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hash of each file in a folder.

    >>> hash_files(Path("merged"), ["model.safetensors"])
    {'model.safetensors': '9f86d081884c7d65…'}
    """
    names = list(names)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return dict(zip(names, threads.map(lambda name: _hash(folder / name), names), strict=True))


def find_damaged(folder: Path, hashes: Mapping[str, str]) -> str | None:
    """The first file that is missing or was changed after it was written."""
    existing = [name for name in hashes if (folder / name).is_file()]
    current = hash_files(folder, existing)
    return next((name for name, written in hashes.items() if current.get(name) != written), None)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
