"""Findings and other results, and how they are shown and written."""

from npukit.report.finding import Finding, Severity, by_hand

__all__ = ["Finding", "Severity", "by_hand"]
