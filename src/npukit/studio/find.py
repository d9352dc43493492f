"""Finds training runs, models, adapters and projects in the folders, without reading weights."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEPTH, ENTRIES, FOLDERS = 6, 2000, 20_000
NOT_LOOKED_INTO = {"node_modules", "__pycache__", "site-packages", "venv"}
SECONDS = 3.0  # that a result is reused
DATA = (".jsonl", ".parquet", ".csv")
LOG, CONFIG, SUMMARY, ANSWERS = "log.jsonl", "npukit.yaml", "summary.json", "completions.jsonl"


@dataclass(frozen=True)
class Contents:
    """The folders of runs, of models and adapters, and files of data, newest first."""

    runs: tuple[Path, ...]
    models: tuple[Path, ...]
    adapters: tuple[Path, ...]
    data: tuple[Path, ...]


class Finder:
    """Searches the folders, and reuses the result for a moment."""

    def __init__(self, roots: tuple[Path, ...]) -> None:
        self._roots = roots
        self._contents: Contents | None = None
        self._at = 0.0
        self._lock = threading.Lock()

    def contents(self, fresh: bool = False) -> Contents:
        with self._lock:
            if self._contents is None or fresh or time.monotonic() - self._at > SECONDS:
                self._contents = look(self._roots)
                self._at = time.monotonic()
            return self._contents


def look(roots: tuple[Path, ...]) -> Contents:
    """
    >>> look((Path("work"),)).runs
    (PosixPath('work/runs/lora'),)
    """
    runs, models, adapters, data = [], [], [], []
    for number, (folder, names) in enumerate(_folders(roots)):
        if LOG in names and (CONFIG in names or SUMMARY in names):
            runs.append(folder)
        if "adapter_config.json" in names:
            adapters.append(folder)
        elif "config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names):
            models.append(folder)
        else:
            data += [folder / name for name in names if name.endswith(DATA) and name not in (LOG, ANSWERS)]
        if number > FOLDERS:
            break
    return Contents(*(tuple(sorted(paths, key=_age)) for paths in (runs, models, adapters, data)))


def _folders(roots: tuple[Path, ...]) -> Iterator[tuple[Path, set[str]]]:
    waiting = [(root, 0) for root in roots]
    seen = set(roots)
    while waiting:
        folder, depth = waiting.pop()
        names: set[str] = set()
        try:
            with os.scandir(folder) as entries:
                for number, entry in enumerate(entries):
                    if number > ENTRIES:
                        break
                    if not entry.is_dir(follow_symlinks=False):
                        names.add(entry.name)
                    elif depth < DEPTH and entry.name[0] != "." and entry.name not in NOT_LOOKED_INTO:
                        below = Path(entry.path)
                        if below not in seen:
                            waiting.append((below, depth + 1))
        except OSError:
            continue
        yield folder, names


def _age(folder: Path) -> float:
    try:
        return -folder.stat().st_mtime
    except OSError:
        return 0.0
