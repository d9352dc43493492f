"""Validation errors of options as sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails


def sentences(error: ValidationError, known: Iterable[str]) -> list[str]:
    """One sentence for each mistake; `known` are the names of all options.

    >>> sentences(error, ["epochs"])
    ['there is no option epoch: did you mean epochs?']
    """
    return [_sentence(problem, list(known)) for problem in error.errors()]


def _sentence(error: ErrorDetails, known: list[str]) -> str:
    name = ".".join(str(part) for part in error["loc"] if isinstance(part, str))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, known, n=1)
        return f"there is no option {name}" + (f": did you mean {near[0]}?" if near else ".")
    return f"{name} is {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}."
