"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from npukit.doctor.problems import Trouble
from npukit.report import Finding, Severity


class CheckState(str, Enum):
    """How a check ended."""

    good = "good"
    warning = "warning"
    error = "error"
    skipped = "skipped"


@dataclass(frozen=True)
class Check:
    """A check's title, a one-line summary of what it saw, and the problems that it found."""

    title: str
    says: str
    troubles: tuple[Trouble, ...] = ()
    skipped: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(trouble.finding for trouble in self.troubles)

    @property
    def state(self) -> CheckState:
        severities = {finding.severity for finding in self.findings}
        if Severity.error in severities:
            return CheckState.error
        if Severity.warning in severities:
            return CheckState.warning
        return CheckState.skipped if self.skipped else CheckState.good


def skip(title: str, because: str) -> Check:
    """Return a check that has no result on this machine, with the reason."""
    return Check(title, because, skipped=True)
