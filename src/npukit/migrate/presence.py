"""Conditions that ask whether a library for CUDA is there; what they ask for is looked up in the project.

HAVE_TE    not is_te_min_version("2.3")    te_gemm is None    HAVE_GTP = HAVE_TE, of a file that it is imported from
"""

from __future__ import annotations

import ast
from functools import lru_cache

from npukit.facts.libraries import Library, imported, named
from npukit.source.names import Names, file_of, inside, names_of

_THERE, _MISSING = (ast.IsNot, ast.Gt, ast.GtE), (ast.Is, ast.Lt, ast.LtE)
_DEPTH = 3  # of names that stand for others


def missing(condition: ast.expr, names: Names) -> str:
    """The library for CUDA that is missing where a condition holds: not HAVE_TE, te_gemm is None, version < "2.3" """
    return _asked(condition, names, there=False)


def present(condition: ast.expr, names: Names) -> str:
    """The library for CUDA that is there where a condition holds: HAVE_TE and x, te_gemm is not None"""
    return _asked(condition, names, there=True)


def _asked(condition: ast.expr, names: Names, there: bool) -> str:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _asked(condition.operand, names, not there)
    if isinstance(condition, ast.BoolOp):
        found = [_asked(each, names, there) for each in condition.values]
        suffices = any(found) if isinstance(condition.op, ast.And) == there else all(found)
        return next(filter(None, found), "") if suffices else ""
    if isinstance(condition, ast.Compare):
        asks = isinstance(condition.ops[0], _THERE if there else _MISSING)
        return _library(condition.left, names) if asks else ""
    return _library(condition, names) if there else ""


def _library(asked: ast.expr, names: Names, depth: int = _DEPTH) -> str:
    """The library for CUDA that an expression names, or that a name in it stands for in the project."""
    found = [each for each in inside(asked) if isinstance(each, (ast.Name, ast.Attribute))]
    for each in found:
        library = named(each.id if isinstance(each, ast.Name) else each.attr)
        if library and library.is_missing:
            return library.name
    looked_up = (each for each in found if depth and isinstance(each, ast.Name))
    libraries = (_stands_for(each.id, names.lookup(each)[0], names, depth) for each in looked_up)
    return next(filter(None, libraries), "")


def named_for_cuda(text: str) -> Library | None:
    """The library for CUDA alone of which a name speaks."""
    library = named(text)
    return library if library and library.needs_cuda else None


@lru_cache(maxsize=1024)
def _stands_for(name: str, scope: ast.AST | None, names: Names, depth: int) -> str:
    for binding in names.bindings_in(scope, name):
        if binding.kind == "import":
            module, _, inner = binding.target.rpartition(".")
            library = imported(binding.target) or named(inner)
            if library and library.is_missing:
                return library.name
            is_class = inner[:1].isupper() and not inner.isupper()
            where = file_of(module, names.path, names.root) if module and not is_class else None
            others = names_of(where, names.root) if where and depth else None
            if others and (found := _stands_for(inner, others.tree, others, depth - 1)):
                return found
            continue
        around = names.parents.get(binding.node)
        while around is not None and not isinstance(around, (ast.Try, ast.Module)):
            around = names.parents.get(around)
        made_by = around if isinstance(around, ast.Try) else binding.node
        if isinstance(made_by, (ast.Try, ast.FunctionDef)) and (found := imported_in(made_by)):
            return found
        if binding.value is not None and depth and (found := _library(binding.value, names, depth - 1)):
            return found
    return ""


def imported_in(part: ast.AST) -> str:
    """The library for CUDA that is imported somewhere in a statement: try: import deep_gemm; HAVE = True"""
    for node in inside(part):
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            func = node.func if isinstance(node, ast.Call) and node.args else None
            by_name = getattr(func, "attr", getattr(func, "id", "")) in ("import_module", "__import__", "find_spec")
            given = node.args[0] if by_name and isinstance(node, ast.Call) else None
            modules = [str(given.value)] if isinstance(given, ast.Constant) else []
        for module in modules:
            if (library := imported(module)) and library.is_missing:
                return library.name
            if module.endswith("_cuda"):  # which the project's build makes
                return module.rpartition(".")[2]
    return ""
