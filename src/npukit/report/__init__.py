"""What was found in somebody's code, machine or run, and how it is shown."""

from npukit.report.finding import Finding, Severity, by_hand

__all__ = ["Finding", "Severity", "by_hand"]
