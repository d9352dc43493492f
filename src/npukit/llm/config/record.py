"""The record of a training run beside its model: npukit.yaml, or ms-swift's args.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from npukit.llm.config.options import Config, DataOptions

RUN = "npukit.yaml"
ARGS = "args.json"
VALIDATION = "val_dataset.jsonl"  # the rows that ms-swift split off the training data


@dataclass(frozen=True)
class RunRecord:
    """What the record contains. Unknown values are None."""

    file: Path
    model: str | None = None
    template: str | None = None
    system: str | None = None
    data: DataOptions | None = None
    seed: int = 42


def find_record(folder: Path) -> RunRecord | None:
    """Find the record in the folder of a model, adapter or checkpoint, or in the folder of the run around it.

    >>> find_record(Path("run/checkpoint-85")).template
    'qwen2_5'
    """
    for place in (folder, folder.parent):
        for name, read in ((RUN, _of_npukit), (ARGS, _of_swift)):
            try:
                if (place / name).is_file() and (record := read(place / name)):
                    return record
            except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
                continue  # a different file with this name
    return None


def record_files(folder: Path) -> list[Path]:
    """Return the files of the record, which are copied together with the model."""
    record = find_record(folder)
    files = [record.file, record.file.with_name(VALIDATION)] if record else []
    return [file for file in files if file.is_file()]


def _of_npukit(file: Path) -> RunRecord | None:
    try:
        config = Config.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except ValidationError:
        return None
    data = config.data
    return RunRecord(file, config.model.path, data.template, data.system, data, config.training.seed)


def _of_swift(file: Path) -> RunRecord | None:
    args: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    apart = file.parent / VALIDATION
    sources = [str(apart)] if apart.is_file() else args.get("val_dataset") or []
    sources = [sources] if isinstance(sources, str) else sources
    data = DataOptions(train=sources, validation=sources) if sources else None
    return RunRecord(file, args.get("model"), args.get("template"), args.get("system"), data, args.get("seed") or 42)
