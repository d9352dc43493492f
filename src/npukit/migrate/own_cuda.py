"""Classes of a project that define a `cuda` method, and the code that calls it.

class Boxes:
    def cuda(self, *args): return Boxes(self.tensor.cuda(*args))
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from npukit.source import PythonFile
from npukit.source.definitions import where_defined
from npukit.source.names import Names

_DEPTH = 3


def own_cuda(receiver: ast.expr, file: PythonFile) -> ast.FunctionDef | None:
    """Return the `cuda` method that the project defines for an object, in its class or a base class.

    A module or tensor counts only if its method does more than the inherited one.

    >>> own_cuda(boxes, file)  # boxes = Boxes(...); boxes.cuda()
    <ast.FunctionDef object>
    """
    methods = (method for kind, names in _classes(receiver, file) for method in _inherited(kind, names))
    return next(methods, None)


def needs_cuda(method: ast.FunctionDef) -> bool:
    """Return whether a method calls torch's in a way that no rule can change: self.tensor.cuda(*args)"""
    calls = (node for node in ast.walk(method) if isinstance(node, ast.Call))
    moves = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"]
    return any(
        (node.args and isinstance(node.args[0], ast.Starred)) or ast.unparse(node.func) == "super().cuda"
        for node in moves
    )


def _inherited(kind: ast.ClassDef, names: Names, depth: int = _DEPTH) -> Iterator[ast.FunctionDef]:
    own = [statement for statement in kind.body if isinstance(statement, ast.FunctionDef) and statement.name == "cuda"]
    is_torchs = any("Module" in (name := ast.unparse(base)) or name.endswith("Tensor") for base in kind.bases)
    yield from (method for method in own if not is_torchs or _does_more(method))
    for base in kind.bases if depth and not own else ():
        origin = where_defined(base, names, "def cuda(")
        if origin and isinstance(origin[0], ast.ClassDef):
            yield from _inherited(origin[0], origin[1], depth - 1)


def _does_more(method: ast.FunctionDef) -> bool:
    """Return whether a method moves something of its own: self.anchors = self.anchors.cuda(); return super().cuda()"""
    moves = (node for node in ast.walk(method) if isinstance(node, ast.Attribute) and node.attr == "cuda")
    return any("super()" not in ast.unparse(node.value) for node in moves)


def _classes(value: ast.expr, file: PythonFile, depth: int = _DEPTH) -> Iterator[tuple[ast.ClassDef, Names]]:
    """Yield the classes of the project that a value may be an instance of, judging by assignments and annotations."""
    class_names: list[ast.expr] = []
    if isinstance(value, ast.Call):  # Kind(), Kind.from_array()
        class_names = [value.func, value.func.value] if isinstance(value.func, ast.Attribute) else [value.func]
    elif isinstance(value, ast.Attribute) and depth:
        for assigned in _attributes(value, file):
            yield from _classes(assigned, file, depth - 1)
    for binding in file.bindings(value) if isinstance(value, ast.Name) and depth else ():
        if binding.value is not None:
            yield from _classes(binding.value, file, depth - 1)
        if isinstance(binding.node, ast.arg) and binding.node.annotation is not None:
            class_names += [node for node in ast.walk(binding.node.annotation) if isinstance(node, ast.Name)]
    for name in class_names:
        origin = where_defined(name, file.names, "")
        if origin and isinstance(origin[0], ast.ClassDef):
            yield origin[0], origin[1]


def _attributes(value: ast.Attribute, file: PythonFile) -> list[ast.expr]:
    """Return the values that a class assigns to an attribute of `self`."""
    owner = file.class_around(value)
    if owner is None or not isinstance(value.value, ast.Name) or value.value.id != "self":
        return []
    return _given_to_self(owner).get(value.attr, [])


@lru_cache(maxsize=4)
def _given_to_self(owner: ast.ClassDef) -> dict[str, list[ast.expr]]:
    given: dict[str, list[ast.expr]] = defaultdict(list)
    for node in (statement for statement in ast.walk(owner) if isinstance(statement, ast.Assign)):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                given[target.attr].append(node.value)
    return given
