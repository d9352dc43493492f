"""Names that torch no longer has.

bad:
    from torch._six import inf

good:
    from math import inf

bad:
    import torch
    values, vectors = torch.symeig(a, eigenvectors=True)

good:
    import torch
    values, vectors = torch.linalg.eigh(a)
"""

from __future__ import annotations

import ast
import re

from npukit.facts.removed_names import removed_name, removed_names
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import tolerates_failure

_LAST_NAMES = frozenset(name.rpartition(".")[2] for name in removed_names())
rule = Rule(
    "NPK307",
    "removed-from-torch",
    words=tuple(removed_names()),
    why="The releases of torch that torch_npu is for do not have it, so the import or the call fails.",
    remedy="Use its replacement.",
    effort=Effort(10, 3),
)

_ASKS_FOR_RELEASE = re.compile(r"version|torch_?(?:major|minor)|hasattr", re.IGNORECASE)


@rule.on(ast.ImportFrom, ast.Import)
def check_import(node: ast.ImportFrom | ast.Import, file: PythonFile, goal: Goal) -> Findings:
    """Report removed modules and names that are imported: from torch._six import inf"""
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
    if not prefix and isinstance(node, ast.ImportFrom):
        return  # a module of the project
    names = [prefix + alias.name for alias in node.names]
    yield from _findings(next((name for name in names if removed_name(name, goal.target.torch)), ""), node, file, goal)


@rule.on(ast.Attribute, says=_LAST_NAMES)
def check_attribute(node: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    """Report removed functions that are called: torch.symeig(a)"""
    if isinstance(node.ctx, ast.Load) and (name := file.resolve(node)) in removed_names():
        yield from _findings(name, node, file, goal)


def _findings(name: str, node: ast.AST, file: PythonFile, goal: Goal) -> Findings:
    removed = removed_name(name, goal.target.torch)
    if removed is None or _is_for_another_release(node, file):
        return
    yield rule.finding(
        (file, node),
        f"{name} is not in torch {removed.missing_from} and newer",
        remedy=removed.instead,
        severity=Severity.note if tolerates_failure(node, file) else None,
        subject=removed.name,
    )


def _is_for_another_release(node: ast.AST, file: PythonFile) -> bool:
    """Return whether code is only for another release: if TORCH_MAJOR < 2: from torch._six import inf"""
    tests = (ancestor.test for ancestor in file.ancestors(node) if isinstance(ancestor, (ast.If, ast.IfExp)))
    return any(_ASKS_FOR_RELEASE.search(file.source(test)) for test in tests)
