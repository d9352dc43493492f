"""A file that could not be read: invalid Python, truncated, in an unknown encoding, or larger than 8 MiB.

Nothing in the file was checked or changed. Fix it, or leave it out with `exclude` in pyproject.toml.
"""

from __future__ import annotations

from npukit.migrate.rule import Rule, Severity

rule = Rule(
    "NPK001",
    "unreadable",
    words=(),
    severity=Severity.warning,
    why="Nothing in it was checked or changed.",
    remedy="Fix the file, or leave it out with `exclude` in pyproject.toml.",
)
