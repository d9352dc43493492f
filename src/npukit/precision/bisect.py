"""Narrow a difference down to one operator, by running a script on two devices repeatedly.

The first round records the modules of both runs, the second the operators of the first module that differs, and the
third the tensors of the module that contains the first differing operator. This keeps recordings small even for large
models.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.launch.run import script_arguments, tied
from npukit.precision.comparing import compare
from npukit.precision.recording.hook import recording
from npukit.precision.recording.options import RecordOptions
from npukit.precision.result import Comparison, Divergence

Log = Callable[[str], None]


@dataclass(frozen=True)
class Bisection:
    """The last and closest comparison, and the rounds that led to it."""

    comparison: Comparison
    looks: tuple[str, ...]  # a description of what each round recorded

    @property
    def exit_code(self) -> int:
        return self.comparison.exit_code


def bisect(
    command: Sequence[str],
    environments: tuple[Mapping[str, str], Mapping[str, str]],
    folder: Path,
    steps: tuple[int, ...] | None = None,
    auto: bool = False,
    log: Log = lambda _: None,
) -> Bisection:
    """Run `command` in both environments until the first differing operator has been recorded with its tensors.

    >>> bisect(["train.py"], (cpu.environment(), npu.environment()), Path("hunt")).comparison.first.what
    """
    looks: list[str] = []

    def look(what: str, options: RecordOptions) -> Comparison:
        looks.append(what)
        left, right = (folder / f"{len(looks)}-{side}" for side in ("left", "right"))
        for dump, environment in zip((left, right), environments, strict=True):
            log(f"recording {what}: {dump.name}")
            record(command, environment, dataclasses.replace(options, output=str(dump.absolute())), auto)
        return compare(left, right)

    comparison = look("modules", RecordOptions("", steps=steps))
    if comparison.first is None:
        return Bisection(comparison, tuple(looks))
    only, step = _suspect(comparison.first), (comparison.first.row.step,)
    closer = look(f"operators of {only or 'the whole model'}", RecordOptions("", "ops", step, only=only))
    if closer.first is None:
        return Bisection(comparison, tuple(looks))
    inner = closer.first.path or only
    last = look(f"tensors of {inner or 'the whole model'}", RecordOptions("", "ops", step, tensors=True, only=inner))
    return Bisection(last if _names_the_same(last, closer) else closer, tuple(looks))


def _names_the_same(last: Comparison, closer: Comparison) -> bool:
    """Whether the last round, which recorded fewer rows, still shows the difference found before it."""
    first, before = last.first, closer.first
    return first is not None and before is not None and (first.kind, first.what) == (before.kind, before.what)


def record(command: Sequence[str], environment: Mapping[str, str], options: RecordOptions, auto: bool) -> None:
    """Run a script to its end while recording it. Its output goes to stderr, because stdout is for results."""
    argv = [sys.executable, *script_arguments(command, auto)]
    code = subprocess.run(argv, env=tied(recording(options, environment)), stdout=sys.stderr).returncode
    if code:
        raise NpukitError(f"The script ended with exit code {code}: only a script that finishes can be compared.")


def _suspect(first: Divergence) -> str:
    """The module to examine next: the one that differs, or its parent if code between modules is responsible."""
    path = first.row.path
    return path.rpartition(".")[0] if first.kind in ("outside", "missing", "source") else path
