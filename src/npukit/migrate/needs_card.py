"""Code that never runs on the CPU, whatever the device: behind a refusal, or beside what only a card can say."""

from __future__ import annotations

import ast
import re

from npukit.migrate.patches import is_test
from npukit.migrate.refusals import leaves
from npukit.migrate.writing import guarded
from npukit.source import PythonFile

_NCCL = re.compile(r"""backend=["']nccl["']""")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_NEED_ONE = ("get_device_name", "get_device_properties", "mem_get_info", "reset_peak_memory_stats")


def is_behind_a_refusal(node: ast.AST, file: PythonFile) -> bool:
    """Whether code above has left where there is no card, or chosen one: if not torch.cuda.is_available(): return"""
    child = node
    for parent in file.ancestors(node):
        blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        block = next((each for each in blocks if isinstance(each, list) and child in each), [])
        above = block[: block.index(child)] if block else []
        if any(
            isinstance(each, ast.If) and leaves(each.body[-1]) and _asks_for_none(each.test, file) for each in above
        ):
            return True
        if isinstance(parent, ast.With) and any(_is(each.context_expr, "device", file) for each in parent.items):
            return True
        child = parent
    return False


def _asks_for_none(test: ast.expr, file: PythonFile) -> bool:
    """not torch.cuda.is_available()"""
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is(test.operand, "is_available", file)


def _is(node: ast.expr, function: str, file: PythonFile) -> bool:
    return isinstance(node, ast.Call) and file.resolve(node.func) == f"torch.cuda.{function}"


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
    return any((scope is file.tree or scope in file.ancestors(each)) and not guarded(each, file) for each in uses)


def _is_called(node: ast.AST, file: PythonFile) -> bool:
    parent = file.parent(node)
    return isinstance(parent, ast.Call) and parent.func is node


def _is_torch(node: ast.AST, file: PythonFile) -> bool:
    return file.resolve(node) == "torch.cuda"


def stands_beside_one(node: ast.AST, file: PythonFile) -> bool:
    """Whether the same function asks a card for what the CPU has not: torch.cuda.reset_peak_memory_stats()"""
    around = file.function(node)
    return around is not file.tree and any(
        file.function(each) is around and file.resolve(each) == f"torch.cuda.{name}" and not guarded(each, file)
        for name in _NEED_ONE
        for each in file.by_name.get(name, ())
    )
