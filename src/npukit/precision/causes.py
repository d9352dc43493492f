"""Known reasons for a difference, as data in causes.yaml, with the evidence that the recordings must contain."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from npukit.precision.dump import Call
from npukit.precision.result import Cause, Divergence
from npukit.precision.tolerance import LARGEST


@functools.cache
def known_causes() -> tuple[dict[str, Any], ...]:
    """The rows of causes.yaml."""
    return tuple(yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")))


Environment = Mapping[str, Any]  # the switches and the accelerator of a run


def causes_of(divergence: Divergence, environments: tuple[Environment, Environment]) -> tuple[Cause, ...]:
    """The known causes for which the recordings contain all the evidence that causes.yaml requires.

    >>> causes_of(comparison.first, (recorded_environment(left), recorded_environment(right)))[0].code
    'hf32-convolution'
    """
    return tuple(
        Cause(row["code"], row["text"].strip(), row["remedy"].strip())
        for row in known_causes()
        if divergence.kind in row["kinds"] and _fits(row, divergence) and _is_set(row.get("set"), environments)
    )


def _fits(row: Mapping[str, Any], divergence: Divergence) -> bool:
    if "ops" not in row and "error" not in row and not row.get("saturated"):
        return True
    if divergence.calls is None:
        return False
    left, right = divergence.calls
    smallest, largest = row.get("error", [0.0, float("inf")])
    dtypes = {value.dtype for value in left.outputs.values()}
    return (
        re.search(row.get("ops", ""), left.op) is not None
        and smallest <= (divergence.row.error or 0.0) <= largest
        and (not row.get("dtype") or row["dtype"] in dtypes)
        and (not row.get("saturated") or _saturates(left, right) or _saturates(right, left))
    )


def _is_set(wanted: Sequence[Environment] | None, environments: tuple[Environment, Environment]) -> bool:
    """Whether one of the runs has every setting of one of the given combinations."""
    return wanted is None or any(
        all(environment.get(name) in (values if isinstance(values, list) else [values]) for name, values in row.items())
        for row in wanted
        for environment in environments
    )


def _saturates(call: Call, other: Call) -> bool:
    """Whether one call returns the largest finite number of its dtype where the other returns Inf."""
    return any(
        bool(theirs.inf) and not value.inf and value.maximum is not None and value.dtype in LARGEST
        and max(value.maximum, -(value.minimum or 0.0)) == LARGEST[value.dtype]
        for place, value in call.outputs.items()
        if (theirs := other.outputs.get(place))
    )  # fmt: skip
