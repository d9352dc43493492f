"""Environment variables that matter on NPUs: their meaning, valid values and conflicts."""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from dataclasses import dataclass
from typing import Any

from npukit.facts.data import load_yaml


@dataclass(frozen=True)
class Variable:
    """One variable. `pattern` matches valid values completely; `why` says what goes wrong with others."""

    name: str
    meaning: str
    default: str = ""
    pattern: str = ""
    minimum: int | None = None
    maximum: int | None = None
    ascending: bool = False  # a list of ascending numbers
    why: str = ""
    deprecated_for: str = ""
    since_cann: str = ""  # the release that deprecated it; empty: always deprecated
    of_cuda: bool = False  # it affects only GPUs
    instead: str = ""  # the equivalent on NPUs
    takes_the_same: bool = False  # `instead` accepts the same values
    refused: str = ""  # the values that it does not accept

    def accepts(self, value: str) -> bool:
        """Whether `value` is valid.

        >>> variables()["ASCEND_RT_VISIBLE_DEVICES"].accepts("0, 1")
        False
        """
        if self.pattern and not re.fullmatch(self.pattern, value):
            return False
        if self.ascending:
            numbers = [int(number) for number in value.split(",")]
            return all(one < next_one for one, next_one in itertools.pairwise(numbers))
        if self.minimum is not None and self.maximum is not None:
            return self.minimum <= int(value) <= self.maximum
        return True


@dataclass(frozen=True)
class Conflict:
    """Two variables that conflict if their values match the given patterns."""

    first: str
    second: str
    why: str
    remedy: str  # a shell command
    first_value: str = ".*"
    second_value: str = ".*"
    error: bool = False  # the program will not run; otherwise one of the two is ignored


def _data() -> dict[str, Any]:
    data: dict[str, Any] = load_yaml("variables.yaml")
    return data


@functools.cache
def variables() -> dict[str, Variable]:
    """All known variables by name."""
    return {row["name"]: Variable(**row) for row in _data()["variables"]}


@functools.cache
def renamed() -> dict[str, str]:
    """CUDA's variables whose values mean the same in a variable for NPUs.

    >>> renamed()["CUDA_VISIBLE_DEVICES"]
    'ASCEND_RT_VISIBLE_DEVICES'
    """
    return {name: variable.instead for name, variable in variables().items() if variable.takes_the_same}


@functools.cache
def _refused() -> re.Pattern[str]:
    return re.compile("|".join(variable.refused for variable in variables().values() if variable.refused))


def is_refused(text: str) -> bool:
    """Whether a text assigns a value for CUDA that the NPU's variable does not accept.

    >>> is_refused("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")
    True
    """
    return _refused().search(text) is not None


def conflicts() -> list[Conflict]:
    """All known conflicts."""
    return [Conflict(**row) for row in _data()["conflicts"]]


def is_reported(name: str) -> bool:
    """Whether a bug report should include a variable.

    >>> is_reported("HCCL_IF_IP"), is_reported("EDITOR")
    (True, False)
    """
    return name in variables() or name.startswith(tuple(_data()["reported"]))


def meant(name: str) -> str | None:
    """The known variable closest to a misspelt name, if one is close enough.

    >>> meant("ASCEND_RT_VISIBLE_DEVICE")
    'ASCEND_RT_VISIBLE_DEVICES'
    """
    near = difflib.get_close_matches(name, variables(), n=1, cutoff=0.88)
    return near[0] if near else None
