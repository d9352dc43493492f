"""Classes of a project that have a `cuda` of their own, and the code that calls it.

class Boxes:
    def cuda(self, *args): return Boxes(self.tensor.cuda(*args))
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

from npukit.source import PythonFile
from npukit.source.names import Names, where_defined

_DEPTH = 3


def has_own_cuda(receiver: ast.expr, file: PythonFile) -> bool:
    """Whether it is an object of a class of the project that has a `cuda` of its own, which moves what it holds."""
    return any(_own(kind) for kind, _ in _classes(receiver, file, "def cuda("))


def calls_own_cuda(region: Sequence[ast.AST], file: PythonFile) -> bool:
    """Whether it calls such a method that keeps calling torch's, and so needs CUDA: self.tensor.cuda(*args)

    >>> calls_own_cuda(condition.body, file)  # if torch.cuda.is_available(): boxes = boxes.cuda()
    True
    """
    calls = (node for each in region for node in ast.walk(each) if isinstance(node, ast.Call) and not node.args)
    return any(
        _passes_on(method)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda"
        for kind, names in _classes(call.func.value, file, "")
        for method in _inherited(kind, names)
    )


def _passes_on(method: ast.FunctionDef) -> bool:
    calls = (node for node in ast.walk(method) if isinstance(node, ast.Call) and node.args)
    return any(getattr(call.func, "attr", "") == "cuda" and isinstance(call.args[0], ast.Starred) for call in calls)


def _own(kind: ast.ClassDef) -> list[ast.FunctionDef]:
    """That of a module or a tensor is left out: it moves as `to` does."""
    if any("Module" in (name := ast.unparse(base)) or name in ("Tensor", "torch.Tensor") for base in kind.bases):
        return []
    return [each for each in kind.body if isinstance(each, ast.FunctionDef) and each.name == "cuda"]


def _inherited(kind: ast.ClassDef, names: Names, depth: int = _DEPTH) -> Iterator[ast.FunctionDef]:
    """The `cuda` of a class, or of those of the project that it is derived from."""
    own = _own(kind)
    yield from own
    for base in kind.bases if depth and not own else ():
        found = where_defined(base, names, "")
        if found and isinstance(found[0], ast.ClassDef):
            yield from _inherited(found[0], found[1], depth - 1)


def _classes(
    value: ast.expr, file: PythonFile, containing: str, depth: int = _DEPTH
) -> Iterator[tuple[ast.ClassDef, Names]]:
    """The classes of the project of which a value may be, as far as assignments and annotations tell, in files with
    the text that the caller looks for."""
    named: list[ast.expr] = []
    if isinstance(value, ast.Call):  # Kind(), Kind.from_array()
        named = [value.func, value.func.value] if isinstance(value.func, ast.Attribute) else [value.func]
    elif isinstance(value, ast.Attribute) and depth:
        for assigned in _attributes(value, file):
            yield from _classes(assigned, file, containing, depth - 1)
    for binding in file.bindings(value) if isinstance(value, ast.Name) and depth else ():
        if binding.value is not None:
            yield from _classes(binding.value, file, containing, depth - 1)
        if isinstance(binding.node, ast.arg) and binding.node.annotation is not None:
            named += [each for each in ast.walk(binding.node.annotation) if isinstance(each, ast.Name)]
    for name in named:
        found = where_defined(name, file.names, containing)
        if found and isinstance(found[0], ast.ClassDef):
            yield found[0], found[1]


def _attributes(value: ast.Attribute, file: PythonFile) -> list[ast.expr]:
    """What the class gives to an attribute of its `self`."""
    owner = next((each for each in file.ancestors(value) if isinstance(each, ast.ClassDef)), None)
    if owner is None or not isinstance(value.value, ast.Name) or value.value.id != "self":
        return []
    return _given_to_self(owner).get(value.attr, [])


@lru_cache(maxsize=4)
def _given_to_self(owner: ast.ClassDef) -> dict[str, list[ast.expr]]:
    given: dict[str, list[ast.expr]] = defaultdict(list)
    for node in (each for each in ast.walk(owner) if isinstance(each, ast.Assign)):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                given[target.attr].append(node.value)
    return given
