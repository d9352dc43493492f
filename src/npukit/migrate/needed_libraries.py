"""Conditions that ask whether a library for CUDA is there; what they ask for is looked up in the project.

HAVE_TE    not is_te_min_version("2.3")    te_gemm is None    HAVE_GTP = HAVE_TE, of a file that it is imported from
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from npukit.source.names import Names, file_of, inside, names_of

LIBRARY = re.compile(
    r"transformer[\s_-]?engine|(?:^|[_\W])TE(?:[_\W]|$)|(?:^|[_\W])te_(?:min|version|general|supports|spec)|_te_|triton|tilelang"
    r"|deep_?gemm|deep_?ep(?:[_\W]|$)|hybrid_?ep|nccl_?ep(?:[_\W]|$)|cutlass|bitsandbytes|mamba_?ssm|causal_?conv1d|flash_?mla"
    r"|flash[_-]?attn|(?:^|[_\W])fa_?[234](?:[_\W]|$)|is_fa_min|nvshmem|nvls|symm(?:etric)?_?mem|tensorrt|(?:mx|nv)?fp[48]|kitchen"
    r"|blackwell|hopper|compute.capability|device_capability|(?:^|\W)SM\s?\d\d|smoothquant_cuda|torch_int|flashinfer|cudnn"
    r"|nvml|nixl|nvidia_resiliency",
    re.IGNORECASE,
)
_THERE, _MISSING = (ast.IsNot, ast.Gt, ast.GtE), (ast.Is, ast.Lt, ast.LtE)
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEPTH = 3  # of names that stand for others


@lru_cache(maxsize=65536)
def is_of_library(name: str) -> bool:
    """Whether a name or module is of a library for CUDA; the files of a project share most of their names.

    >>> is_of_library("HAVE_TE"), is_of_library("model")
    (True, False)
    """
    return LIBRARY.search(name) is not None


def lacks(condition: ast.expr, names: Names) -> bool:
    """Whether it holds where a library for CUDA is missing: not HAVE_TE, te_gemm is None, version < "2.3" """
    return _says(condition, names, there=False)


def holds(condition: ast.expr, names: Names) -> bool:
    """Whether it holds only where a library for CUDA is there: HAVE_TE and x, te_gemm is not None, version > "2.3" """
    return _says(condition, names, there=True)


def _says(condition: ast.expr, names: Names, there: bool) -> bool:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _says(condition.operand, names, not there)
    if isinstance(condition, ast.BoolOp):
        any_or_all = any if isinstance(condition.op, ast.And) == there else all
        return any_or_all(_says(each, names, there) for each in condition.values)
    if isinstance(condition, ast.Compare):
        return isinstance(condition.ops[0], _THERE if there else _MISSING) and _is_about(condition.left, names)
    return there and _is_about(condition, names)


def _is_about(asked: ast.expr, names: Names, depth: int = _DEPTH) -> bool:
    """Whether a name, or what it stands for in the project, is of a library for CUDA."""
    found = [each for each in inside(asked) if isinstance(each, (ast.Name, ast.Attribute))]
    if any(is_of_library(each.id if isinstance(each, ast.Name) else each.attr) for each in found):
        return True
    asked_for = ((each.id, names.lookup(each)[0]) for each in found if isinstance(each, ast.Name))
    return depth > 0 and any(_stands_for(name, scope, names, depth) for name, scope in asked_for)


def stands_for_library(name: ast.Name, names: Names) -> bool:
    """Whether a name comes from the import of a library for CUDA, whatever it is called."""
    return _stands_for(name.id, names.lookup(name)[0], names, _DEPTH)


@lru_cache(maxsize=256)
def _stands_for(name: str, scope: ast.AST | None, names: Names, depth: int) -> bool:
    for binding in names.bindings_in(scope, name):
        if binding.kind == "import":
            module, _, inner = binding.target.rpartition(".")
            if is_of_library(binding.target):
                return True
            is_class = inner[:1].isupper() and not inner.isupper()
            where = file_of(module, names.path, names.root) if module and not is_class else None
            others = names_of(where, names.root) if where and depth else None
            if others and _stands_for(inner, others.tree, others, depth - 1):
                return True
            continue
        around = names.parents.get(binding.node)
        while around is not None and not isinstance(around, (ast.Try, ast.Module)):
            around = names.parents.get(around)
        if isinstance(around, ast.Try) and imports_library(around):
            return True
        if binding.value is not None and depth and _is_about(binding.value, names, depth - 1):
            return True
        if isinstance(binding.node, _Function) and imports_library(binding.node):
            return True
    return False


def imports_library(part: ast.AST) -> bool:
    """try: import deep_gemm; HAVE = True"""
    return any(is_of_library(name) for each in inside(part) for name in imported(each))


def imported(node: ast.AST) -> list[str]:
    """The modules that a statement or a call imports: importlib.import_module("deep_gemm")"""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    func = node.func if isinstance(node, ast.Call) and node.args else None
    is_import = getattr(func, "attr", getattr(func, "id", "")) in ("import_module", "__import__")
    return [str(node.args[0].value)] if is_import and isinstance(node.args[0], ast.Constant) else []  # type: ignore[attr-defined]
