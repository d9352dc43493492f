"""Find the place for a constant that needs torch: below the imports and above anything that may use it."""

from __future__ import annotations

import ast
import re

from npukit.migrate import torch_imports
from npukit.source import PythonFile

_CHANGES = re.compile(r"cuda|nccl|gpu|device|\.to\(", re.IGNORECASE)
_CUDA = re.compile(r"\bcuda\b")
_IMPORT = (ast.Import, ast.ImportFrom)
_QUIET = (*_IMPORT, ast.Assign, ast.Pass, ast.Raise, ast.Expr, ast.ExceptHandler, ast.Try, ast.If)
_DEFINITION = (ast.FunctionDef, ast.ClassDef)
_FEW = 3  # more statements than this between imports are the program itself


def below_torch(file: PythonFile) -> int:
    """Return the offset below the block of imports that contains torch's import.

    Conditional imports belong to the block, and so does what prepares imports, such as changes to sys.path or a logger.
    """
    end = _start_of_torch(file) if torch_imports.at_top(file) else torch_imports.insertion(file)[0]
    is_notebook, between = file.path.suffix == ".ipynb", 0
    for node in file.tree.body:
        if file.line_start(node) < end:
            continue
        if isinstance(node, _IMPORT) or (not is_notebook and _imports(node, file)):
            end, between = (end if _defines(node) else file.line_end(node)), 0
        elif is_notebook or not _prepares(node, file):
            break
        else:
            between += isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if between > _FEW:
                break
    return end


def _start_of_torch(file: PythonFile) -> int:
    for node in file.tree.body:
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names):
            return file.line_start(node)
    return 0


def _imports(node: ast.stmt, file: PythonFile) -> bool:
    """Return whether an `if` or `try` does little but import."""
    if not isinstance(node, (ast.Try, ast.If)) or (isinstance(node, ast.If) and _may_change(node.test, file)):
        return False
    parts = [statement for field in ("body", "orelse", "finalbody") for statement in getattr(node, field, ())]
    parts += [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
    has_import = any(isinstance(inner, _IMPORT) for inner in ast.walk(node))
    return has_import and all(_imports(part, file) or _is_quiet(part, file) for part in parts)


def _is_quiet(node: ast.stmt, file: PythonFile) -> bool:
    if isinstance(node, _IMPORT):
        return not _CUDA.search(file.source(node))
    return isinstance(node, (*_QUIET, *_DEFINITION)) and not _may_change(node, file)


def _defines(node: ast.stmt) -> bool:
    """Return whether a statement defines a substitute for a missing name, which belongs to the imports."""
    return any(isinstance(inner, _DEFINITION) for inner in ast.walk(node))


def _prepares(node: ast.stmt, file: PythonFile) -> bool:
    """Return whether a statement among imports is a setting or a call that no migration may change."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _names_torch(node.value, file):
        return False
    return isinstance(node, (ast.Assign, ast.Expr)) and not _may_change(node, file)


def _names_torch(value: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is made by torch, such as `scaler = GradScaler()`, which gets a device."""
    names = (file.resolve(node) for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Attribute)))
    return any(name and name.split(".")[0] in ("torch", "apex") for name in names)


def _may_change(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a migration may change a node. Numbers and booleans never change: HAS_CUDA_KERNELS = False"""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and not isinstance(node.value.value, str):
        return False
    return bool(_CHANGES.search(file.source(node)))
