"""A diagnosis as plain data, for `--json` and for files that users send to others."""

from __future__ import annotations

from typing import Any

from npukit.doctor.examine import Diagnosis
from npukit.doctor.problems import Trouble

FIELDS = ("code", "what", "why", "remedy", "evidence")


def as_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return all checks with the problems that they found and the commands that fix these.

    >>> as_data(examine())["good"]
    False
    """
    return {
        "good": diagnosis.good,
        "simulated": diagnosis.simulated,
        "first": diagnosis.first.code if diagnosis.first else None,
        "checks": [
            {
                "title": check.title,
                "state": check.state.value,
                "says": check.says,
                "findings": [_finding(trouble) for trouble in check.troubles],
            }
            for check in diagnosis.checks
        ],
    }


def _finding(trouble: Trouble) -> dict[str, Any]:
    finding = trouble.finding
    fields = {name: getattr(finding, name) for name in FIELDS}
    return {**fields, "severity": finding.severity.value, "commands": list(trouble.commands)}
