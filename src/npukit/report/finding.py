"""The one form in which npukit describes a problem: every report consists of findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from npukit.report.language import translated

if TYPE_CHECKING:  # every command imports this file, but few of them read sources
    from npukit.source.place import Edit, Place


class Severity(str, Enum):
    """How much a finding matters."""

    error = "error"  # it will not run
    warning = "warning"  # it will run, but slowly or with different results
    note = "note"  # useful to know


@dataclass(frozen=True)
class Finding:
    """A problem, with everything that a person or a program needs in order to act on it.

    >>> Finding("NPK110", Severity.error, "model.cuda() moves to a CUDA device", why="...", remedy="model.to(device)")
    """

    code: str  # stable, such as NPK110; every code has a page in the docs
    severity: Severity
    what: str
    why: str = ""
    remedy: str = ""
    place: Place | None = None  # findings about a machine have none
    evidence: str = ""  # the line, version or output that shows the problem
    edits: tuple[Edit, ...] = field(default=(), repr=False)  # the edits that fix it, if npukit can
    subject: str = ""  # the library, API or setting that it concerns, if any

    @property
    def fixable(self) -> bool:
        return bool(self.edits)


def page_hint(findings: Iterable[Finding]) -> list[str]:
    """A line that says where the pages of findings are, with the most serious one as an example; none without any.

    >>> page_hint([Finding("NPK901", Severity.error, "there is no NPU")])
    ['More on a finding: `npukit explain NPK901`']
    """
    worst = min(findings, key=lambda finding: list(Severity).index(finding.severity), default=None)
    return [translated(f"More on a finding: `npukit explain {worst.code}`")] if worst else []


def by_hand(findings: Iterable[Finding]) -> list[Finding]:
    """The errors and warnings that npukit does not fix."""
    return [finding for finding in findings if finding.severity is not Severity.note and not finding.fixable]
