"""Imports of libraries that do not run on NPUs.

Optional imports (inside `try`, or after a check that the library is available) are reported as notes.

bad:
    from flash_attn import flash_attn_func

good:
    from torch.nn.functional import scaled_dot_product_attention
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
    "NPK401",
    "library-without-npu",
    words=(),
    modules=modules("replace"),
    severity=Severity.error,
    why="The library does not run on NPUs.",
    remedy="Use its replacement on NPUs (`npukit explain NPK401` lists them), and import it for CUDA only.",
    effort=Effort(120, 15),
)


@rule.on(ast.Import, ast.ImportFrom)
def check(node: ast.Import | ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    return library_findings(rule, node, file, "replace")
