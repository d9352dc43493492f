"""The log of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from npukit.report.writing import disk_errors_named, write_text


def as_json(value: Any, indent: int | None = None) -> str:
    """NaN and Inf become text, because JSON does not have them."""
    return json.dumps(_plain(value), indent=indent) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class Log:
    """log.jsonl: a line for every logging step, evaluation, checkpoint and note.

    A new run keeps the log of the previous one as log.before.jsonl. A resumed run writes its history again, without the
    steps after its last checkpoint.
    """

    def __init__(self, folder: Path, history: Iterable[Mapping[str, Any]]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = path = folder / "log.jsonl"
        lines = [as_json(record) for record in history]
        if not lines and path.exists():
            path.replace(folder / "log.before.jsonl")
        write_text(path, "".join(lines))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def add(self, record: Mapping[str, Any]) -> None:
        with disk_errors_named(self._path):
            self._file.write(as_json(record))

    def close(self) -> None:
        self._file.close()
