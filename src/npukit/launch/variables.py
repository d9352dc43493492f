"""The environment variables of a job's ranks: facts, filled in for this machine."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FACTS = Path(__file__).parents[1] / "facts" / "launch_variables.yaml"


@dataclass(frozen=True)
class Variable:
    """A variable to set, and why."""

    name: str
    value: str
    reason: str


@functools.cache
def _rows() -> list[dict[str, Any]]:
    import yaml

    rows: list[dict[str, Any]] = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    return rows


def variables(environ: Mapping[str, str], npu: bool, nodes: int, known: Mapping[str, str]) -> list[Variable]:
    """What to set beside `environ`, in which the user has the last word; `known` fills the braces.

    A value that cannot be filled in is left out.
    """
    wanted = []
    for row in _rows():
        if row["name"] in environ or row.get("unless", "") in environ:
            continue
        if (row["for"] == "npu" and not npu) or (row.get("nodes") == "several" and nodes == 1):
            continue
        value = known.get(row["value"].strip("{}"), "") if row["value"].startswith("{") else row["value"]
        if value:
            wanted.append(Variable(row["name"], value, row["reason"]))
    return wanted
