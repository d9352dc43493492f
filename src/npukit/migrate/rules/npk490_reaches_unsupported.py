"""Public functions of a library that reach something unsupported on NPUs, directly or through other functions.

Only for a library (a package with an `__init__.py`) that is analysed itself: `npukit analyze PACKAGE`. The places that
do it have findings of their own; this one says which public functions to stay away from until they are mended.
Calls are followed by name through imports, `self` and the functions of a file, not through variables.
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
