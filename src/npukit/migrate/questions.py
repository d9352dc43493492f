"""Questions about CUDA: torch.cuda.is_available(), device_count() < 2, x.is_cuda, device.type == "cuda"."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.source import PythonFile


def cuda_questions(file: PythonFile) -> Iterator[ast.expr]:
    """Yield every expression in a file that asks about CUDA."""
    if "cuda" not in file.text and "nccl" not in file.text:
        return
    for func in (*file.by_name.get("is_available", ()), *file.by_name.get("startswith", ())):
        call = file.parent(func)
        if isinstance(call, ast.Call) and call.func is func:
            asks = (file.resolve(func) or "").startswith("torch.cuda.")
            starts = getattr(func, "attr", "") == "startswith" and any(_is_word(argument) for argument in call.args)
            if asks or starts:
                yield call
    for func in file.by_name.get("device_count", ()):
        asked = asked_for_cards(func, file)
        if asked is not None and is_negated(asked) and (file.resolve(func) or "").startswith("torch.cuda."):
            yield asked
    for compare in file.of_type(ast.Compare):
        sides = (compare.left, *compare.comparators)
        if any(_is_word(operand) for side in sides for operand in getattr(side, "elts", (side,))):
            yield compare
    yield from (node for node in file.by_name.get("is_cuda", ()) if isinstance(node, ast.Attribute))


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:", "nccl")


def asked_for_cards(name: ast.expr, file: PythonFile) -> ast.Compare | None:
    """Return the comparison that a function's name is part of: torch.cuda.device_count() < 2"""
    call = file.parent(name)
    compare = file.parent(call) if isinstance(call, ast.Call) and call.func is name else None
    return compare if isinstance(compare, ast.Compare) and compare.left is call else None


def is_negated(condition: ast.AST) -> bool:
    """Return whether a comparison holds without CUDA: device != "cuda", device_count() < 2"""
    if not isinstance(condition, ast.Compare):
        return False
    operator, against = condition.ops[0], getattr(condition.comparators[0], "value", None)
    none = isinstance(operator, ast.Eq) and against == 0
    return none or isinstance(operator, (ast.NotEq, ast.NotIn, ast.Lt, ast.LtE))
