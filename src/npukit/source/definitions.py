"""Find where in a project a name is defined, through imports and packages that re-export names."""

from __future__ import annotations

import ast
from pathlib import Path

from npukit.source.cache import per_project
from npukit.source.modules import defines, file_of, has_text
from npukit.source.names import DEPTH, Names, names_of


@per_project(maxsize=8192)
def origin_of(target: str, path: Path, root: Path | None, depth: int = DEPTH) -> tuple[Path | None, str]:
    """The file of the project that a full dotted name comes from, through re-exports, and its name there. The name is
    "" if the target is a module.

    >>> origin_of("ours.ops.scan", Path("train.py"), Path())  # ours/ops/__init__.py: from .kernels import scan
    (PosixPath('ours/ops/kernels.py'), 'scan')
    """
    if module := file_of(target, path, root):
        return module, ""
    package, _, name = target.rpartition(".")
    file = file_of(package or ".", path, root) if package or target.startswith(".") else None
    if file is None or depth == 0 or defines(file, name):
        return file, name
    names = names_of(file, root) if has_text(file, "import") and (has_text(file, name) or has_text(file, "*")) else None
    imported = (
        [binding.target for binding in names.bindings_in(names.tree, name) if binding.kind == "import"] if names else []
    )
    for passed_on in imported or [f"{star}.{name}" for star in names.stars] if names else ():
        where, inner = origin_of(passed_on, file, root, depth - 1)
        if where is not None and (imported or defines(where, inner)):
            return where, inner
    return file, name


def definition_of(func: ast.expr, names: Names, containing: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The function or class of the project that a name refers to, in the same file or in an imported one.

    Another file is parsed only if it contains the text that the caller will look for in the definition.
    """
    definition = where_defined(func, names, containing)
    return definition[0] if definition else None


def where_defined(func: ast.expr, names: Names, containing: str) -> tuple[ast.FunctionDef | ast.ClassDef, Names] | None:
    """The same, with the names of the file that contains it."""
    if isinstance(func, ast.Attribute):  # module.function
        target = names.resolve(func)
        return _defined(target, names, containing) if target else None
    for binding in names.lookup(func)[1] if isinstance(func, ast.Name) else ():
        if isinstance(binding.node, (ast.FunctionDef, ast.ClassDef)):
            return binding.node, names
        if binding.kind == "import" and (definition := _defined(binding.target, names, containing)):
            return definition
    return None


def _defined(target: str, names: Names, containing: str) -> tuple[ast.FunctionDef | ast.ClassDef, Names] | None:
    """What a full dotted name is in the project's own files; a package may re-export it from another of its files."""
    for _ in range(DEPTH):
        module, _, name = target.rpartition(".")
        file = file_of(module or ".", names.path, names.root) if module or target.startswith(".") else None
        defining = names_of(file, names.root) if file and has_text(file, containing) and has_text(file, name) else None
        bindings = defining.bindings_in(defining.tree, name) if defining else []
        for binding in bindings:
            if defining and isinstance(binding.node, (ast.FunctionDef, ast.ClassDef)):
                return binding.node, defining
        passed_on = [binding.target for binding in bindings if binding.kind == "import"]
        if defining is None or not passed_on:
            return None
        names, target = defining, passed_on[0]
    return None
