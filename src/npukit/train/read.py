"""Read the options of a training run from a YAML file."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from npukit.errors import NpukitError
from npukit.train.mistakes import sentences
from npukit.train.options import TrainOptions


def read_options(file: str | Path) -> TrainOptions:
    """The options of a file; the error names all mistakes in it at once.

    >>> options = read_options("config.yaml")
    """
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise NpukitError(f"{file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise NpukitError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise NpukitError(f"{file} must contain options as `name: value`, one per line.")
    try:
        return TrainOptions.model_validate(values)
    except ValidationError as error:
        mistakes = sentences(error, TrainOptions.model_fields)
        raise NpukitError("\n".join(f"{file}: {mistake}" for mistake in mistakes)) from None
