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
from npukit.migrate.imported_libraries import library_findings
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
    return library_findings(rule, node, file, "blocks")
