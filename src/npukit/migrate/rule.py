"""A rule: what it looks for in which nodes or files, and the findings it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from npukit.report import Edit, Finding, Place, Severity
from npukit.source import Document, PythonFile

Check = Callable[..., Iterable[Finding]]
_C = TypeVar("_C", bound=Check)


@dataclass(eq=False)
class Rule:
    """One rule, one file in migrate/rules/. The module's docstring explains it and has its before and after.

    >>> rule = Rule("NPK110", "tensor-or-module-cuda", words=("cuda",))
    >>> @rule.on(ast.Call)
    ... def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]: ...
    """

    code: str
    name: str
    words: tuple[str, ...]  # a file without any of these substrings is never parsed for this rule
    severity: Severity = Severity.error
    fixes: bool = False  # whether its findings may carry edits
    checks: list[tuple[type[ast.AST], Check]] = field(default_factory=list)
    text_checks: list[tuple[str, Check]] = field(default_factory=list)
    doc: str = ""

    def on(self, *types: type[ast.AST]) -> Callable[[_C], _C]:
        """Call the function with every node of these types: (node, PythonFile, Goal). ast.Module is once a file."""

        def register(check: _C) -> _C:
            self.checks += [(each, check) for each in types]
            return check

        return register

    def on_text(self, *kinds: str) -> Callable[[_C], _C]:
        """Call the function with every file of these kinds (see source.find.kind_of): (Document, Goal)."""

        def register(check: _C) -> _C:
            self.text_checks += [(each, check) for each in kinds]
            return check

        return register

    def finding(
        self,
        where: tuple[PythonFile, ast.AST] | Place,
        what: str,
        why: str = "",
        remedy: str = "",
        edits: Sequence[Edit] = (),
        severity: Severity | None = None,
        evidence: str = "",
    ) -> Finding:
        """A finding of this rule: `where` is (file, node), or a Place for files that are not Python."""
        if not isinstance(where, Place):
            file, node = where
            evidence = evidence or file.line_of(node).strip()
            where = file.place(node)
        return Finding(self.code, severity or self.severity, what, why, remedy, where, evidence, tuple(edits))


def place_in(document: Document, start: int, end: int) -> Place:
    """The place of a range of a text file."""
    before = document.text[:start]
    line = before.count("\n") + 1
    column = start - (before.rfind("\n") + 1) + 1
    return Place(document.path, line, column, line, column + end - start)
