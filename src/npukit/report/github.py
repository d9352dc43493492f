"""Findings as GitHub workflow commands, which become annotations of a pull request."""

from __future__ import annotations

from npukit.report.report import Report, in_order, shown

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render_github(report: Report) -> str:
    """One line per finding."""
    lines = []
    for finding in in_order(report.findings):
        properties = {"title": finding.code}
        if place := finding.place:
            properties = {"file": shown(place.file), "line": str(place.line), "col": str(place.column), **properties}
        text = " ".join(filter(None, (finding.what.rstrip(".") + ".", finding.remedy)))
        fields = ",".join(f"{name}={_escaped(value, True)}" for name, value in properties.items())
        lines.append(f"::{_LEVELS[finding.severity.value]} {fields}::{_escaped(text, False)}")
    lines.append(report.verdict)
    return "\n".join(lines) + "\n"


def _escaped(text: str, is_property: bool) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text
