"""Which functions of a package reach a place, through the calls between them."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npukit.migrate.rules import npk490_reaches_unsupported
from npukit.report import Finding, Severity
from npukit.source import PythonFile, Unreadable, read

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Function:
    """A function or method of the package by its full dotted name."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    file: PythonFile

    @property
    def public(self) -> bool:
        return not any(part.startswith("_") for part in self.name.split("."))


def reaching(package: Path, findings: Iterable[Finding]) -> Iterator[Finding]:
    """A finding for every public function that reaches, through at least one other, a place of an error finding."""
    errors = [finding for finding in findings if finding.severity is Severity.error and not finding.fixable]
    if not errors:
        return
    files = [file for path in sorted(package.rglob("*.py")) if (file := _parsed(path, package))]
    functions = {function.name: function for file in files for function in _functions(file, package)}
    callers = _callers(functions, package)
    for finding in errors:
        if start := _function_at(finding, functions):
            yield from _reached_from(start, finding, functions, callers)


def _parsed(path: Path, package: Path) -> PythonFile | None:
    try:
        return read(path, root=package).python
    except (OSError, Unreadable):
        return None


def module_of(path: Path, package: Path) -> str:
    """The dotted name of a file of the package."""
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _functions(file: PythonFile, package: Path) -> Iterator[Function]:
    module = module_of(file.path, package)
    for node in file.nodes:
        if isinstance(node, _FUNCTIONS):
            around = [each.name for each in file.ancestors(node) if isinstance(each, (*_FUNCTIONS, ast.ClassDef))]
            yield Function(".".join([module, *reversed(around), node.name]), node, file)


def _callers(functions: dict[str, Function], package: Path) -> dict[str, set[str]]:
    """Who calls each function. A class is called through its __init__, a module also through its forward."""
    known: dict[str, set[str]] = defaultdict(set)
    for name in functions:
        for called in (name, name.removesuffix(".__init__"), name.removesuffix(".forward")):
            known[called].add(name)
            known["." + called.rpartition(".")[2]].add(name)
    callers: dict[str, set[str]] = defaultdict(set)
    for function in functions.values():
        module = module_of(function.file.path, package)
        for node in ast.walk(function.node):
            target = _called(node, function, module) if isinstance(node, ast.Call) else None
            if target is None:
                continue
            found = known.get(target, set())
            if not found and target.startswith((f"{package.name}.", ".")):
                # Exported by another module than the one that defines it: sure only if the name is unique.
                found = known.get("." + target.rpartition(".")[2], set())
                found = found if len(found) == 1 else set()
            for name in found:
                callers[name].add(function.name)
    return callers


def _called(call: ast.Call, function: Function, module: str) -> str | None:
    """The dotted name that is called; with a dot in front where it comes from another module of the package."""
    target = call.func.value if isinstance(call.func, ast.Subscript) else call.func  # kernel[grid](...)
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return f"{function.name.rpartition('.')[0]}.{target.attr}"
    name = function.file.resolve(target)
    if name is None and isinstance(target, ast.Name):
        return f"{module}.{target.id}"
    return name


def _function_at(finding: Finding, functions: dict[str, Function]) -> Function | None:
    place = finding.place
    around = [
        each
        for each in functions.values()
        if place and each.file.path == place.file and each.node.lineno <= place.line <= (each.node.end_lineno or 0)
    ]
    return max(around, key=lambda each: each.node.lineno, default=None)


def _reached_from(
    start: Function, finding: Finding, functions: dict[str, Function], callers: dict[str, set[str]]
) -> Iterator[Finding]:
    seen, waiting = {start.name}, deque([start.name])
    while waiting:
        for caller in sorted(callers[waiting.popleft()] - seen):
            seen.add(caller)
            waiting.append(caller)
            function = functions[caller]
            if function.public:
                yield npk490_reaches_unsupported.rule.finding(
                    (function.file, function.node),
                    f"functions that reach {finding.code}: {finding.what}",
                    remedy=f"Fix {start.name}, or do not call these functions on NPUs.",
                    evidence=caller,
                )
