"""Expressions that ask for CUDA: torch.cuda.is_available(), device_count() < 2, x.is_cuda, device.type == "cuda"."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from npukit.source import PythonFile


def conditions(file: PythonFile) -> Iterator[ast.expr]:
    """Every expression that asks for CUDA: is_available(), device_count() < 2, is_cuda, == "cuda"."""
    if "cuda" not in file.text and "nccl" not in file.text:
        return
    for func in (*file.by_name.get("is_available", ()), *file.by_name.get("startswith", ())):
        call = file.parent(func)
        if isinstance(call, ast.Call) and call.func is func:
            asks = (file.resolve(func) or "").startswith("torch.cuda.")
            starts = getattr(func, "attr", "") == "startswith" and any(_is_word(each) for each in call.args)
            if asks or starts:
                yield call
    for func in file.by_name.get("device_count", ()):
        asked = asked_for_cards(func, file)
        if asked is not None and is_negated(asked) and (file.resolve(func) or "").startswith("torch.cuda."):
            yield asked
    for compare in file.by_type.get(ast.Compare, ()):
        sides = (compare.left, *compare.comparators)  # type: ignore[attr-defined]
        if any(_is_word(each) for side in sides for each in _elements(side)):
            yield compare  # type: ignore[misc]
    yield from (each for each in file.by_name.get("is_cuda", ()) if isinstance(each, ast.Attribute))


def _elements(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else (node,)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:", "nccl")


def asked_for_cards(name: ast.expr, file: PythonFile) -> ast.Compare | None:
    """The condition that a function's name is in: torch.cuda.device_count() < 2"""
    call = file.parent(name)
    compare = file.parent(call) if isinstance(call, ast.Call) and call.func is name else None
    return compare if isinstance(compare, ast.Compare) and compare.left is call else None


def is_negated(condition: ast.expr) -> bool:
    """Whether a comparison holds where there is no CUDA: device != "cuda", device_count() < 2"""
    if not isinstance(condition, ast.Compare):
        return False
    operator, against = condition.ops[0], getattr(condition.comparators[0], "value", None)
    none = isinstance(operator, ast.Eq) and against == 0
    return none or isinstance(operator, (ast.NotEq, ast.NotIn, ast.Lt, ast.LtE))


def is_cpu(condition: ast.AST) -> bool:
    """device.type == "cpu" """
    sides = (condition.left, *condition.comparators) if isinstance(condition, ast.Compare) else ()
    return any(isinstance(each, ast.Constant) and each.value == "cpu" for each in sides) and not is_negated(condition)  # type: ignore[arg-type]


def decides_about_torch(condition: ast.expr, file: PythonFile) -> bool:
    """Whether what runs where the condition holds is written with torch.cuda or nccl, and so goes over with it.

    >>> decides_about_torch(test, file)  # if kind == "cuda": torch.cuda.synchronize()
    True
    """
    test, choice = condition, file.parent(condition)
    if isinstance(choice, ast.BoolOp) and isinstance(choice.op, ast.And):
        test, choice = choice, file.parent(choice)
    if not isinstance(choice, (ast.If, ast.IfExp)) or choice.test is not test or is_negated(condition):
        return False
    body = choice.body if isinstance(choice.body, list) else [choice.body]
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "cuda")
        or (isinstance(node, ast.Constant) and node.value == "nccl")
        for statement in body
        for node in ast.walk(statement)
    )
