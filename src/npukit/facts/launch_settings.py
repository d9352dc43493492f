"""Environment variables for the ranks of a job, adapted to their machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npukit.facts.data import load_yaml


@dataclass(frozen=True)
class Setting:
    """An environment variable to set for the ranks of a job, and why."""

    name: str
    value: str
    reason: str


def launch_settings(environ: Mapping[str, str], npu: bool, nodes: int, known: Mapping[str, str]) -> list[Setting]:
    """The variables to set in addition to `environ`, which takes precedence. `known` fills the placeholders.

    A variable whose placeholders cannot be filled is left out.
    """
    settings = []
    for row in load_yaml("launch_settings.yaml"):
        if row["name"] in environ or row.get("unless", "") in environ:
            continue
        if (row["for"] == "npu" and not npu) or (row.get("nodes") == "several" and nodes == 1):
            continue
        value = known.get(row["value"].strip("{}"), "") if row["value"].startswith("{") else row["value"]
        if value:
            settings.append(Setting(row["name"], value, row["reason"]))
    return settings
