"""What was found in somebody's code, machine or run, and how it is shown."""

from npukit.report.finding import Edit, Finding, Place, Severity

__all__ = ["Edit", "Finding", "Place", "Severity"]
