"""Read msprobe's config.json, so that people can keep theirs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.precision.recording.options import Level, RecordOptions, parse_numbers

_LEVELS: dict[str, Level] = {"L0": "modules", "L1": "ops", "mix": "ops"}
_TASKS = ("statistics", "tensor", "nan_check", "structure")


def read_config(path: Path, output: str = "") -> RecordOptions:
    """The options that an msprobe config.json asks for. `output` takes precedence over its dump_path.

    >>> read_config(Path("config.json")).level
    'ops'
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise NpukitError(f"Cannot read {path}: {(error.strerror or str(error)).lower()}.") from None
    except (ValueError, RecursionError):
        raise NpukitError(f"{path} is not JSON: give the config.json that msprobe takes.") from None
    if not isinstance(content, dict):
        raise NpukitError(f"{path} is not a config.json of msprobe: it holds no map.")
    task, level = content.get("task") or "statistics", content.get("level") or "L1"
    if task not in _TASKS:
        raise NpukitError(f"{path}: npukit does not record the task {task!r}; use one of {', '.join(_TASKS)}.")
    if level not in _LEVELS:
        raise NpukitError(f"{path}: npukit does not record the level {level!r}; use one of {', '.join(_LEVELS)}.")
    folder = output or content.get("dump_path")
    if not isinstance(folder, str) or not folder:
        raise NpukitError(f"{path} has no dump_path: add it, or give --output.")
    return RecordOptions(
        folder,
        _LEVELS[level],
        _numbers(content.get("step"), "step", path),
        _numbers(content.get("rank"), "rank", path),
        tensors=task == "tensor",
    )


def _numbers(value: Any, name: str, path: Path) -> tuple[int, ...] | None:
    """Numbers and ranges such as [0, "4-6"]. An empty list means all."""
    entries = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, int | str) and not isinstance(entry, bool) for entry in entries):
        raise NpukitError(f'{path}: {name} takes a list of numbers and ranges such as [0, "4-6"].')
    return parse_numbers(",".join(map(str, entries)), f"{path}: {name}") if entries else None


def overridden(options: RecordOptions, **given: Any) -> RecordOptions:
    """The options with those replaced that were given on the command line."""
    return dataclasses.replace(options, **{name: value for name, value in given.items() if value})
