"""Environment variables that matter on NPUs: what they mean, which values work, which exclude each other."""

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
    """One variable. `pattern` matches the whole of a value that works; `why` says what goes wrong with others."""

    name: str
    meaning: str
    default: str = ""
    pattern: str = ""
    minimum: int | None = None
    maximum: int | None = None
    ascending: bool = False  # a list whose numbers must rise
    why: str = ""
    deprecated_for: str = ""
    since_cann: str = ""  # the release from which it is deprecated; empty: always
    of_cuda: bool = False  # it acts on GPUs only
    instead: str = ""  # what does the same on NPUs
    takes_the_same: bool = False  # `instead` takes the same values
    refused: str = ""  # the values that it does not take

    def accepts(self, value: str) -> bool:
        """Whether `value` is one that works.

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
    """Two variables that do not go together, when their values match the patterns given."""

    first: str
    second: str
    why: str
    remedy: str  # a shell command
    first_value: str = ".*"
    second_value: str = ".*"
    error: bool = False  # it will not run; else one of the two is not heeded


def _data() -> dict[str, Any]:
    data: dict[str, Any] = load_yaml("variables.yaml")
    return data


@functools.cache
def variables() -> dict[str, Variable]:
    """Every known variable by name."""
    return {row["name"]: Variable(**row) for row in _data()["variables"]}


@functools.cache
def renamed() -> dict[str, str]:
    """The variables of CUDA whose values mean the same in a variable of NPUs.

    >>> renamed()["CUDA_VISIBLE_DEVICES"]
    'ASCEND_RT_VISIBLE_DEVICES'
    """
    return {name: variable.instead for name, variable in variables().items() if variable.takes_the_same}


@functools.cache
def _refused() -> re.Pattern[str]:
    return re.compile("|".join(variable.refused for variable in variables().values() if variable.refused))


def is_refused(text: str) -> bool:
    """Whether a text has a value for CUDA that the variable of NPUs does not take.

    >>> is_refused("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")
    True
    """
    return _refused().search(text) is not None


def conflicts() -> list[Conflict]:
    """Every known pair that does not go together."""
    return [Conflict(**row) for row in _data()["conflicts"]]


def is_reported(name: str) -> bool:
    """Whether a bug report needs to know a variable.

    >>> is_reported("HCCL_IF_IP"), is_reported("EDITOR")
    (True, False)
    """
    return name in variables() or name.startswith(tuple(_data()["reported"]))


def meant(name: str) -> str | None:
    """The known variable that a misspelt name stands for, if one is near enough.

    >>> meant("ASCEND_RT_VISIBLE_DEVICE")
    'ASCEND_RT_VISIBLE_DEVICES'
    """
    near = difflib.get_close_matches(name, variables(), n=1, cutoff=0.88)
    return near[0] if near else None
