"""Run a script twice and report whether it computes the same bits, and the first operator that does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.precision.bisect import record
from npukit.precision.comparing import compare
from npukit.precision.recording.options import RecordOptions
from npukit.precision.result import Comparison
from npukit.report.terminal import say


@dataclass(frozen=True)
class DeterminismCheck:
    """Whether a run is repeatable."""

    deterministic: bool
    comparison: Comparison

    @property
    def exit_code(self) -> int:
        return 0 if self.deterministic else 1


def check(
    command: Sequence[str], environment: Mapping[str, str], options: RecordOptions, folder: Path, auto: bool = False
) -> DeterminismCheck:
    """Run `command` twice, record both runs below `folder`, and compare them bit for bit.

    >>> check(["train.py"], os.environ, RecordOptions("", level="ops"), Path("checked")).deterministic
    True
    """
    dumps = folder / "first", folder / "second"
    for dump in dumps:
        say(f"{dump.name} run")
        record(command, environment, dataclasses.replace(options, output=str(dump.absolute())), auto)
    comparison = compare(*dumps, exact=True)
    return DeterminismCheck(comparison.same, comparison)
