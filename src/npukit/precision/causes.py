"""Known reasons for a difference: data in causes.yaml, matched by what the first divergence is."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from npukit.precision.dump import Call
from npukit.precision.result import Cause, Divergence


@functools.cache
def known_causes() -> tuple[dict[str, Any], ...]:
    """The rows of causes.yaml."""
    return tuple(yaml.safe_load(Path(__file__).with_name("causes.yaml").read_text(encoding="utf-8")))


def causes_of(divergence: Divergence, calls: tuple[Call | None, Call | None]) -> tuple[Cause, ...]:
    """The known causes that fit a divergence, the most specific first.

    >>> causes_of(comparison.first, (left, right))[0].code
    'hf32-convolution'
    """
    call = calls[0] or calls[1]
    return tuple(
        Cause(row["code"], row["text"].strip(), row["remedy"].strip())
        for row in known_causes()
        if divergence.kind in row["kinds"] and call is not None and _fits(row, divergence, call)
    )


def _fits(row: dict[str, Any], divergence: Divergence, call: Call) -> bool:
    if not re.search(row.get("ops", ""), call.op) or call.phase not in row.get("phases", [call.phase]):
        return False
    smallest, largest = row.get("error", [0.0, float("inf")])
    dtypes = {value.dtype for value in call.outputs.values()}
    return smallest <= (divergence.row.error or 0.0) <= largest and (not row.get("dtype") or row["dtype"] in dtypes)
