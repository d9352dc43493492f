"""Imports of libraries that need an additional package or build on NPUs, or run there only in part.

bad:
    import vllm

good:
    import transformers
"""

from __future__ import annotations

from npukit.migrate.imported_libraries import LibraryRule
from npukit.migrate.rule import Effort, Severity

rule = LibraryRule(
    "NPK402",
    "library-needs-adapter",
    verdicts=("adapter", "partial"),
    severity=Severity.warning,
    why="The library runs on NPUs only with an additional package, or only in part.",
    remedy="Install the package that it needs on NPUs (`npukit explain NPK402` lists them).",
    effort=Effort(60, 5),
)
