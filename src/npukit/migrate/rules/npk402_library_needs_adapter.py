"""An import of a library that runs on NPUs with another package, a build of its own, or in part.

bad:
    import vllm

good:
    import transformers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.migrate.rules.npk401_library_without_npu import advice, imported_libraries, needed_when, state_here
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule("NPK402", "library-needs-adapter", words=("import",), severity=Severity.warning)


@rule.on(ast.Import, ast.ImportFrom)
def check(node: ast.Import | ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    for library in imported_libraries(node, file):
        if library.verdict in ("adapter", "partial"):
            how = "on NPUs with something beside it" if library.verdict == "adapter" else "on NPUs in part"
            _, severity = needed_when(node, file)
            note = library.verdict == "partial" or severity is Severity.note
            yield rule.finding(
                (file, node),
                f"{library.name}: {how}",
                why=f"{library.why}. {state_here(node, library, file)}",
                remedy=advice(library),
                severity=Severity.note if note else None,
            )
