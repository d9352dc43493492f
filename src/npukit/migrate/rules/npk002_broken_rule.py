"""A rule that failed on this file, which is a bug in npukit. All other rules were applied."""

from __future__ import annotations

from npukit.migrate.rule import Rule, Severity

rule = Rule(
    "NPK002",
    "broken-rule",
    words=(),
    severity=Severity.warning,
    why="This is a bug in npukit. The other rules were applied.",
    remedy="Please report it with the line that is shown.",
)
