"""Public functions of a library that reach something unsupported on NPUs, directly or through other functions.

This rule applies to a library (a package with an `__init__.py`) that is analyzed itself: `npukit analyze PACKAGE`. The
unsupported places have findings of their own. This one lists the public functions to avoid until those are fixed.
Calls are followed by name through imports, `self` and the functions of a file, but not through variables.
"""

from __future__ import annotations

from npukit.migrate.rule import Rule
from npukit.report import Severity

rule = Rule(
    "NPK490",
    "reaches-unsupported",
    words=(),
    severity=Severity.note,
    why="The function calls something that does not run on NPUs.",
    remedy="Fix the function that it calls, or do not call this one on NPUs.",
)
