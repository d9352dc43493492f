"""Compare what else affects numbers: the versions, environment variables and switches of two runs."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from npukit.errors import NpukitError
from npukit.precision.reading.msprobe import load
from npukit.precision.recording.environment import FILE


@dataclass(frozen=True)
class Difference:
    """A setting in which two runs differ."""

    section: str  # machine, packages, variables or switches
    name: str
    left: Any  # None if the run does not have it
    right: Any
    why: str = ""  # how it affects numbers; empty if it is not known to


@dataclass(frozen=True)
class EnvironmentComparison:
    """The settings in which two environments differ."""

    left: str
    right: str
    differences: tuple[Difference, ...]  # those that affect numbers first

    @property
    def matter(self) -> tuple[Difference, ...]:
        return tuple(difference for difference in self.differences if difference.why)

    @property
    def exit_code(self) -> int:
        return 1 if self.matter else 0


def compare_environments(left: Path, right: Path) -> EnvironmentComparison:
    """Compare the environment.json files of two dumps.

    >>> compare_environments(Path("gpu"), Path("npu")).matter[0].name
    'torch'
    """
    ours, theirs = (load(path / FILE if path.is_dir() else path) for path in (left, right))
    differences: list[Difference] = []
    for section in ("switches", "packages", "variables", "machine"):
        one, other = ours.get(section), theirs.get(section)
        if not isinstance(one, dict) or not isinstance(other, dict):
            raise NpukitError(f"{left} or {right} is not an environment.json of `npukit precision capture`.")
        for name in dict.fromkeys([*one, *other]):
            if one.get(name) != other.get(name):
                differences.append(Difference(section, name, one.get(name), other.get(name), why(section, name)))
    differences.sort(key=lambda difference: not difference.why)
    return EnvironmentComparison(str(left), str(right), tuple(differences))


def recorded_environment(dump: Path) -> dict[str, Any]:
    """One section of the environment of the run that wrote a dump, such as its switches; empty if it was not recorded.

    >>> recorded_environment(Path("npu/step0"))["npu.conv.allow_hf32"]
    True
    """
    file = next((folder / FILE for folder in (dump, *dump.absolute().parents[:3]) if (folder / FILE).is_file()), None)
    content = load(file) if file else {}
    machine, switches = (content.get(section) for section in ("machine", "switches"))
    if not isinstance(machine, dict) or not isinstance(switches, dict):
        return {}
    return {**switches, "accelerator": machine.get("accelerator")}


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    return tuple(yaml.safe_load(Path(__file__).with_name("settings.yaml").read_text(encoding="utf-8")))


def why(section: str, name: str) -> str:
    """How a setting affects numbers; empty if it is not known to.

    >>> why("variables", "HCCL_DETERMINISTIC")
    'whether collectives add in a fixed order'
    """
    fitting = (row for row in _rows() if row["section"] == section and re.fullmatch(row["name"], name))
    return next((row["why"] for row in fitting), "")
