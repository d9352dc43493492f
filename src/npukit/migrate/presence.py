"""Recognise conditions that ask whether a CUDA library is installed. Names in them are looked up across the project.

HAVE_TE
not is_te_min_version("2.3")
te_gemm is None
HAVE_GTP = HAVE_TE          # where HAVE_TE is imported from another file
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache

from npukit.facts.libraries import Library, imported, named
from npukit.migrate.kernels import library_needed_by
from npukit.source import PythonFile
from npukit.source.modules import file_of
from npukit.source.names import Names, names_of
from npukit.source.nodes import inside, last_name

_FROM_CUDA = re.compile(r"\.cu[\"']|\bcuda_sources\b|\bwith_cuda=True")
_NEEDED = re.compile(
    r"requires?\b|needs?\b|only\b|not (?:installed|available|supported)|unavailable|without|lacks", re.IGNORECASE
)
_REQUIRES = re.compile(r"_?(?:requires?|needs?|skip_(?:if_no|unless))_")
SKIPS = ("skipif", "skipIf", "skipUnless")
_THERE, _MISSING = (ast.IsNot, ast.Gt, ast.GtE), (ast.Is, ast.Lt, ast.LtE)
_DEPTH = 3  # of names that are followed to other names


def library_missing_where(condition: ast.expr, names: Names) -> str:
    """Return the CUDA library that is missing if a condition holds: not HAVE_TE, te_gemm is None, version < "2.3" """
    return _asked(condition, names, there=False)


def library_present_where(condition: ast.expr, names: Names) -> str:
    """Return the CUDA library that is installed if a condition holds: HAVE_TE and x, te_gemm is not None"""
    return _asked(condition, names, there=True)


def _asked(condition: ast.expr, names: Names, there: bool) -> str:
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _asked(condition.operand, names, not there)
    if isinstance(condition, ast.BoolOp):
        libraries = [_asked(operand, names, there) for operand in condition.values]
        suffices = any(libraries) if isinstance(condition.op, ast.And) == there else all(libraries)
        return next(filter(None, libraries), "") if suffices else ""
    if isinstance(condition, ast.Compare):
        asks = isinstance(condition.ops[0], _THERE if there else _MISSING)
        return _library(condition.left, names) if asks else ""
    return _library(condition, names) if there else ""


def _library(asked: ast.expr, names: Names, depth: int = _DEPTH) -> str:
    """Return the CUDA library that an expression names, directly or through a name that stands for it."""
    nodes = [inner for inner in inside(asked) if isinstance(inner, (ast.Name, ast.Attribute))]
    for node in nodes:
        library = named(node.id if isinstance(node, ast.Name) else node.attr)
        if library and library.is_missing:
            return library.name
    looked_up = (name for name in nodes if depth and isinstance(name, ast.Name))
    libraries = (_stands_for(name.id, names.lookup(name)[0], names, depth) for name in looked_up)
    return next(filter(None, libraries), "")


def cuda_library_named(text: str) -> Library | None:
    """Return the CUDA-only library that a name mentions."""
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
            if others and (library_name := _stands_for(inner, others.tree, others, depth - 1)):
                return library_name
            continue
        around = names.parents.get(binding.node)
        while around is not None and not isinstance(around, (ast.Try, ast.Module)):
            around = names.parents.get(around)
        made_by = around if isinstance(around, ast.Try) else binding.node
        if isinstance(made_by, (ast.Try, ast.FunctionDef)) and (library_name := library_imported_in(made_by)):
            return library_name
        if binding.value is not None and depth and (library_name := _library(binding.value, names, depth - 1)):
            return library_name
    return ""


def library_imported_in(part: ast.AST) -> str:
    """Return the CUDA library that a statement imports somewhere inside it: try: import deep_gemm; HAVE = True"""
    for node in inside(part):
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            func = node.func if isinstance(node, ast.Call) and node.args else None
            by_name = last_name(func) in ("import_module", "__import__", "find_spec")
            given = node.args[0] if by_name and isinstance(node, ast.Call) else None
            modules = [str(given.value)] if isinstance(given, ast.Constant) else []
        for module in modules:
            if (library := imported(module)) and library.is_missing:
                return library.name
            if module.endswith("_cuda"):  # an extension that the project builds
                return module.rpartition(".")[2]
    return ""


def library_required_by(statement: ast.stmt, file: PythonFile, asks_any: bool = False) -> str:
    """Return the CUDA library without which nothing after a statement runs.

    if not HAVE_TE: raise ...
    assert HAVE_TE
    pytest.importorskip("triton")
    try: import deep_ep
    except ImportError as e: raise ... from e
    """
    if isinstance(statement, ast.Assert):
        return library_present_where(statement.test, file.names) if is_presence_check(statement.test, file) else ""
    if isinstance(statement, ast.If):
        if statement.orelse and (kernel := _loaded_or_imported(statement, file)):
            return kernel
        if not is_exit(statement.body[-1]) or not (asks_any or is_presence_check(statement.test, file)):
            return ""
        if isinstance(statement.body[-1], ast.Return) and not asks_any:
            return ""
        asks_more = isinstance(statement.test, ast.BoolOp) and isinstance(statement.test.op, ast.And)
        mentioned = library_in_message(statement.body[-1]) if asks_any and not asks_more else ""
        return library_missing_where(statement.test, file.names) or mentioned
    if isinstance(statement, ast.Try):
        return (
            library_imported_in(statement) if all(is_exit(handler.body[-1]) for handler in statement.handlers) else ""
        )
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        library = library_needed_by(statement)
        return library.name if library and library.name != "Triton" else ""
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign, ast.Return)) else None
    if isinstance(value, ast.Call) and file.has("cpp_extension"):
        builds = last_name(value.func) in ("load", "load_inline")
        if builds and _FROM_CUDA.search(file.source(value)):
            return "a kernel that nvcc compiles"
    if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "importorskip" and value.args:
        module = str(getattr(value.args[0], "value", ""))
        library = imported(module) or named(module)
        return library.name if library and library.is_missing else ""
    return ""


def _loaded_or_imported(choice: ast.If, file: PythonFile) -> str:
    """Return the kernel that one branch compiles and the other imports.

    if find_spec("scan") is None: scan = load("scan", sources=["scan.cu"])
    else: import scan
    """
    if not file.has("cpp_extension"):
        return ""
    for loading, importing in ((choice.body, choice.orelse), (choice.orelse, choice.body)):
        imports = (part for part in importing if isinstance(part, (ast.Import, ast.ImportFrom)))
        names = {alias.asname or alias.name for part in imports for alias in part.names}
        loads = (part for part in loading if isinstance(part, ast.Assign))
        for part in loads:
            if getattr(part.targets[0], "id", "") in names and (kernel := library_required_by(part, file)):
                return kernel
    return ""


def is_presence_check(condition: ast.expr, file: PythonFile) -> bool:
    """Return whether a condition only asks what is installed, such as HAVE_TE, and not what the user wants."""
    for node in inside(condition):
        if isinstance(node, ast.Name) and file.names.lookup(node)[0] not in (None, file.tree):
            return False
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return False
        if isinstance(node, ast.Call) and not all(isinstance(argument, ast.Constant) for argument in node.args):
            return False
        if isinstance(node, ast.Attribute):
            return False
    return True


def library_in_message(part: ast.AST) -> str:
    """Return the CUDA library that a message says is needed: pytest.skip("needs Transformer Engine")"""
    for node in inside(part):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if text and _NEEDED.search(text) and (library := named(text)) and library.is_missing:
            return library.name
    return ""


def library_required_by_marks(decorators: Sequence[ast.expr], file: PythonFile, depth: int = 2) -> str:
    """Return the CUDA library without which a test is skipped: @pytest.mark.skipif(not HAVE_TE, ...), @requires_te"""
    for mark in decorators:
        if isinstance(mark, (ast.List, ast.Tuple)) and (
            library_name := library_required_by_marks(mark.elts, file, depth)
        ):
            return library_name
        if isinstance(mark, ast.Name) and depth:
            values = [binding.value for binding in file.names.lookup(mark)[1] if binding.value is not None]
            if library_name := library_required_by_marks(values, file, depth - 1):
                return library_name
        name = last_name(mark)
        if _REQUIRES.match(name) and (library := cuda_library_named(name)):
            return library.name
        if isinstance(mark, ast.Call) and (kind := getattr(mark.func, "attr", "")) in SKIPS:
            asks = library_present_where if kind == "skipUnless" else library_missing_where
            given = [*mark.args[1:], *(keyword.value for keyword in mark.keywords)]
            library_name = next(filter(None, (asks(argument, file.names) for argument in mark.args[:1])), "")
            if library_name := library_name or next(filter(None, map(library_in_message, given)), ""):
                return library_name
    return ""


def is_exit(statement: ast.stmt) -> bool:
    """Return whether nothing after a statement runs: return, raise, pytest.skip(), sys.exit()"""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = last_name(call.func) if isinstance(call, ast.Call) else ""
    return isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)) or name in (
        "skip",
        "skipTest",
        "exit",
    )
