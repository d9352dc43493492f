"""The result of a self-test: the outcome of every check, as text and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from npukit.report.terminal import printable_line

# "crashed" and "timed out" are failures of a process; "not run" are checks after too many of them.
Outcome = Literal["passed", "failed", "crashed", "timed out", "not run", "skipped"]
GOOD = ("passed", "skipped")
LISTED = 20  # failures on the terminal; the file has all of them
WIDTH = 160  # characters of a message on the terminal


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    group: str
    name: str
    outcome: Outcome
    seconds: float = 0.0
    error: float | str | None = None  # relative error against the shipped result
    tolerance: float | None = None
    message: str = ""
    found: Any = None  # the computed values, if they were wrong


@dataclass(frozen=True)
class Selftest:
    """All checks on a device."""

    device: str
    checks: tuple[CheckResult, ...]

    @property
    def failed(self) -> tuple[CheckResult, ...]:
        return tuple(check for check in self.checks if check.outcome not in GOOD)

    @property
    def good(self) -> bool:
        return not self.failed and any(check.outcome == "passed" for check in self.checks)

    def counts(self) -> dict[str, dict[str, int]]:
        """The number of checks of each group by outcome."""
        groups = dict.fromkeys(check.group for check in self.checks)
        return {
            group: dict(Counter(check.outcome for check in self.checks if check.group == group)) for group in groups
        }


def group_line(group: str, checks: Sequence[CheckResult]) -> str:
    """One group as one line.

    >>> group_line("training", [CheckResult("training", "fp32", "passed", 2.0)])
    'training      1 passed, 2 s'
    """
    counts = Counter(check.outcome for check in checks)
    listed = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    reasons = dict.fromkeys(check.message for check in checks if check.outcome == "skipped" and check.message)
    why = f" ({printable_line('; '.join(reasons))})" if reasons else ""
    return f"{group:<13} {listed}{why}, {sum(check.seconds for check in checks):.0f} s"


def verdict(result: Selftest) -> str:
    """The outcome as a sentence that names the failed checks.

    >>> verdict(Selftest("cpu", ()))
    'No check could be run on this device.'
    """
    if result.failed:
        return f"Failed:\n{failures(result)}"
    return "All checks passed." if result.good else "No check could be run on this device."


def failures(result: Selftest) -> str:
    """The failed checks and their reasons."""
    lines = [f"{check.group}: {check.name}: {check.outcome}{_why(check)}" for check in result.failed[:LISTED]]
    more = len(result.failed) - LISTED
    return "\n".join([*lines, *([f"and {more} more, in the file"] if more > 0 else [])])


def _why(check: CheckResult) -> str:
    if check.message:
        first = printable_line(check.message.strip().partition("\n")[0])
        return f": {first[:WIDTH]}{'…' * (len(first) > WIDTH)}"
    return (
        ""
        if check.error is None
        else f": off by {check.error:.2g}, expected at most {check.tolerance:.2g}"
        if isinstance(check.error, float)
        else f": off by {check.error}"
    )
