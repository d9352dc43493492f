"""Findings as JSON: the whole report, with one object per finding."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from npukit.report.finding import Finding
from npukit.report.report import Report, in_order, shown
from npukit.report.terminal import UNSAFE


def to_json(value: Any) -> str:
    """A result as JSON. Dataclasses, pydantic models and paths become plain data, and the text is safe for terminals.

    >>> to_json({"file": Path("a.py"), "name": "\x1b"})
    '{\n  "file": "a.py",\n  "name": "\\u001b"\n}'
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, default=plain)
    if "NaN" in text or "Infinity" in text:  # JSON has no such numbers: they become text
        text = json.dumps(json.loads(text, parse_constant=str), indent=2, ensure_ascii=False)
    return UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def plain(value: Any) -> Any:
    """Convert what JSON cannot represent; the `default` function of json.dumps."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, set | frozenset) else str(value)


def as_data(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "title": report.title,
        "verdict": report.verdict,
        "facts": dict(report.facts),
        "findings": [finding_data(finding) for finding in in_order(report.findings)],
    }


def finding_data(finding: Finding, base: Path | None = None) -> dict[str, Any]:
    """A finding as plain data, with its file relative to the base. Missing values are left out."""
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
        data["file"] = shown(place.file, base)
        data |= {"line": place.line, "column": place.column, "end_line": place.end_line, "end_column": place.end_column}
        data["cell"] = place.cell
    return {key: value for key, value in data.items() if value not in (None, "")}
