"""Whether code runs with a card in any case."""

from __future__ import annotations

import ast
import re

from npukit.migrate.patches import is_test
from npukit.source import PythonFile

_GUARD = re.compile(r"cuda|gpu|npu|accelerator|(?-i:\bDEVICE\b)", re.IGNORECASE)
_NCCL = re.compile(r"""backend=["']nccl["']""")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_NEED_ONE = ("get_device_name", "get_device_properties", "mem_get_info", "reset_peak_memory_stats")


def needs_one_anyway(node: ast.AST, file: PythonFile) -> bool:
    """Whether the function around it, or the script or test that it is in, uses a card whatever the options are:
    x.cuda(), torch.cuda.synchronize(), backend="nccl" """
    is_run = is_test(file.path) or "__main__" in file.text
    around = next((each for each in reversed(list(file.ancestors(node))) if isinstance(each, _FUNCTION)), file.tree)
    scope = file.tree if is_run else around
    if _NCCL.search(file.source(scope) if scope is not file.tree else file.text):
        return True
    uses = [each for each in file.by_name.get("cuda", ()) if _is_called(each, file) and not _is_torch(each, file)]
    for name in (*_NEED_ONE, "current_device", "set_device", "synchronize"):
        uses += [each for each in file.by_name.get(name, ()) if file.resolve(each) == f"torch.cuda.{name}"]
    return any((scope is file.tree or scope in file.ancestors(each)) and not _guarded(each, file) for each in uses)


def _is_called(node: ast.AST, file: PythonFile) -> bool:
    parent = file.parent(node)
    return isinstance(parent, ast.Call) and parent.func is node


def _is_torch(node: ast.AST, file: PythonFile) -> bool:
    return file.resolve(node) == "torch.cuda"


def _guarded(node: ast.AST, file: PythonFile) -> bool:
    """Whether the node runs only where a condition about the device holds."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            inside = child is not parent.test and child not in _as_list(parent.orelse)
            if inside and _GUARD.search(file.source(parent.test)):
                return True
        elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            before = parent.values[: parent.values.index(child)] if child in parent.values else []
            if any(_GUARD.search(file.source(each)) for each in before):
                return True
        child = parent
    return False


def _as_list(value: list[ast.stmt] | ast.expr | None) -> list[ast.AST]:
    return list(value) if isinstance(value, list) else [value] if value is not None else []
