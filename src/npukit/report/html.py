"""Findings as one HTML file that needs nothing else: filters by severity, rule, file and text, and no network."""

from __future__ import annotations

import html
import json
from pathlib import Path

from npukit.report.json import finding_data
from npukit.report.report import Report, in_order


def render_html(report: Report) -> str:
    """The report as a page; the findings lie in it as data, and the page draws those that are looked at."""
    template = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    data = {"findings": [finding_data(finding) for finding in in_order(report.findings)], "rules": report.rule_names}
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in report.facts.items()
    )
    parts = {
        "TITLE": html.escape(report.title),
        "VERDICT": html.escape(report.verdict),
        "FACTS": "".join(facts),
        # "</script>" inside the data must not end the element that holds it.
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    }
    for name, text in parts.items():
        template = template.replace("{{" + name + "}}", text)
    return template
