"""Findings as one self-contained HTML file with filters by severity, rule, file and text."""

from __future__ import annotations

from html import escape

from npukit.report.json import finding_data
from npukit.report.page import fill_page
from npukit.report.report import Report, in_order


def render_html(report: Report) -> str:
    """The report as a page. The findings are embedded as data, and the page renders the visible ones."""
    data = {"findings": [finding_data(finding) for finding in in_order(report.findings)], "rules": report.rule_names}
    facts = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.facts.items())
    title, verdict = escape(report.title), escape(report.verdict)
    return fill_page("report.html", data, title=title, verdict=verdict, facts="".join(facts))
