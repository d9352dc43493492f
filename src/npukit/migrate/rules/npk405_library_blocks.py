"""Imports of libraries that do not run on NPUs and have no replacement.

bad:
    import MinkowskiEngine as ME

good:
    import torch_geometric
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.facts.libraries import modules
from npukit.migrate.goal import Goal
from npukit.migrate.imported_libraries import advice, imported_libraries, needed_when, state_here
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK405",
    "library-blocks",
    words=(),
    modules=modules("blocks"),
    severity=Severity.error,
    why="The library does not run on NPUs, and nothing replaces it.",
    remedy="Remove what depends on it, or port the operators that you need.",
    effort=Effort(2400, 60),
)


@rule.on(ast.Import, ast.ImportFrom)
def check(node: ast.Import | ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    for library in imported_libraries(node, file):
        if library.verdict == "blocks":
            when, severity = needed_when(node, file)
            yield rule.finding(
                (file, node),
                f"{library.name} does not run on NPUs{when}",
                why=f"{library.why}. {state_here(node, library, file)}",
                remedy=advice(library),
                subject=library.name,
                severity=severity,
            )
