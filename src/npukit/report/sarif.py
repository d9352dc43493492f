"""Findings as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from npukit import __version__
from npukit.report.finding import Finding
from npukit.report.json import to_json
from npukit.report.report import Report, in_order, relative, shown


def render_sarif(report: Report) -> str:
    """The report as one SARIF run."""
    codes = sorted({finding.code for finding in report.findings})
    driver = {
        "name": "npukit",
        "version": __version__,
        "rules": [_rule(code, report) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": _results(in_order(report.findings), codes),
        "properties": {"verdict": report.verdict, **report.facts},
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return to_json(log) + "\n"


def _rule(code: str, report: Report) -> dict[str, Any]:
    example = next(finding for finding in report.findings if finding.code == code)
    return {
        "id": code,
        "name": report.rule_names.get(code, code),
        "shortDescription": {"text": report.rule_names.get(code, example.what).replace("-", " ")},
        "help": {"text": " ".join(filter(None, (example.why, example.remedy))) or example.what},
        "defaultConfiguration": {"level": example.severity.value},
    }


def _results(findings: Sequence[Finding], codes: list[str]) -> list[dict[str, Any]]:
    results = []
    seen: dict[str, int] = {}
    for finding in findings:
        result: dict[str, Any] = {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": finding.severity.value,
            "message": {"text": " ".join(filter(None, (finding.what.rstrip(".") + ".", finding.why, finding.remedy)))},
            "properties": {"fixable": finding.fixable},
        }
        if place := finding.place:
            region = {"startLine": place.line, "startColumn": place.column}
            if place.end_line and place.end_column:
                region |= {"endLine": place.end_line, "endColumn": place.end_column}
            location = {"artifactLocation": {"uri": _uri(relative(place.file))}, "region": region}
            result["locations"] = [{"physicalLocation": location}]
        # The same line keeps its identity when lines above it move.
        key = f"{finding.code}:{shown(finding.place.file) if finding.place else ''}:{finding.evidence or finding.what}"
        seen[key] = seen.get(key, 0) + 1
        result["partialFingerprints"] = {"npukit/v1": hashlib.sha256(f"{key}:{seen[key]}".encode()).hexdigest()[:20]}
        results.append(result)
    return results


def _uri(path: Path) -> str:
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path))
