"""Imports of libraries that need an additional package or build on NPUs, or run there only in part.

bad:
    import vllm

good:
    import transformers
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
    "NPK402",
    "library-needs-adapter",
    words=(),
    modules=modules("adapter", "partial"),
    severity=Severity.warning,
    why="The library runs on NPUs only with an additional package, or only in part.",
    remedy="Install the package that it needs on NPUs (`npukit explain NPK402` lists them).",
    effort=Effort(60, 5),
)


@rule.on(ast.Import, ast.ImportFrom)
def check(node: ast.Import | ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    return library_findings(rule, node, file, "adapter", "partial")
