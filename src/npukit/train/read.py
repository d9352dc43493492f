"""Read the options of a training run from a YAML file."""

from __future__ import annotations

import difflib
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from npukit.errors import NpukitError
from npukit.train.options import TrainOptions


def read_options(file: str | Path) -> TrainOptions:
    """The options that a file gives; all that is wrong in it is said at once.

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
        raise NpukitError("\n".join(f"{file}: {_sentence(each)}" for each in error.errors())) from None


def _sentence(error: ErrorDetails) -> str:
    name = ".".join(str(part) for part in error["loc"] if isinstance(part, str))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, TrainOptions.model_fields, n=1)
        return f"there is no option {name}" + (f": did you mean {near[0]}?" if near else ".")
    return f"{name} is {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}."
