"""Findings as JSON: the whole report, one object a finding."""

from __future__ import annotations

import json
from typing import Any

from npukit.report.finding import Finding
from npukit.report.rendering import Report, in_order, shown


def render_json(report: Report) -> str:
    """The report as one JSON object."""
    return json.dumps(as_data(report), indent=1, ensure_ascii=False) + "\n"


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "title": report.title,
        "verdict": report.verdict,
        "facts": dict(report.facts),
        "findings": [finding_data(finding) for finding in in_order(report.findings)],
    }


def finding_data(finding: Finding) -> dict[str, Any]:
    """A finding as plain data; what it does not have is left out."""
    place = finding.place
    data: dict[str, Any] = {
        "code": finding.code,
        "severity": finding.severity.value,
        "what": finding.what,
        "why": finding.why,
        "remedy": finding.remedy,
        "evidence": finding.evidence,
        "fixable": finding.fixable,
    }
    if place:
        data["file"] = shown(place.file)
        data |= {"line": place.line, "column": place.column, "end_line": place.end_line, "end_column": place.end_column}
        data["cell"] = place.cell
    return {key: value for key, value in data.items() if value not in (None, "")}
