"""Strings that name a CUDA device, and the code around them."""

from __future__ import annotations

import ast
import re

from npukit.migrate.styles.choices import asked_in, filled_in, is_from_cpu
from npukit.migrate.styles.style import Edits
from npukit.source import Edit, PythonFile

_CUDA = re.compile(r"(?<=[\"'])cuda")


def is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value == value


def is_device(call: ast.AST | None, file: PythonFile) -> bool:
    """Return whether a node is torch.device(...) with one argument."""
    if not isinstance(call, ast.Call) or file.resolve(call.func) != "torch.device":
        return False
    return len(call.args) == 1 and not call.keywords


def card_number(node: ast.expr, rest: str) -> str:
    """Return the card's number in "cuda:0", or "" if a string names none."""
    return rest[1:] if isinstance(node, ast.Constant) and rest[1:].isdigit() else ""


def names_cuda(node: ast.expr, file: PythonFile) -> bool:
    """Return whether an expression is "cuda", f"cuda:{rank}", "cuda:" + str(rank), or torch.device of one of these."""
    value = node.args[0] if is_device(node, file) else node  # type: ignore[attr-defined]
    while isinstance(value, (ast.BinOp, ast.Call)):  # "cuda:" + str(rank), "cuda:{}".format(rank)
        value = value.left if isinstance(value, ast.BinOp) else getattr(value.func, "value", None)
    first = value.values[0] if isinstance(value, ast.JoinedStr) and value.values else value
    return isinstance(first, ast.Constant) and str(first.value).split(":")[0] == "cuda"


def extend_choice(node: ast.expr, mark: str, torch: str, file: PythonFile) -> Edit | None:
    """Put `"npu" if hasattr(torch, "npu") and torch.npu.is_available() else` in front of a choice of CUDA."""
    body: ast.AST = filled_in(node, file)
    body = file.parent(body) if is_device(file.parent(body), file) else body  # type: ignore[assignment]
    choice = file.parent(body)
    asked = asked_in(choice, file)
    if not isinstance(choice, ast.IfExp) or choice.body is not body or asked is None or not is_from_cpu(choice, file):
        return None
    (start, end), at = file.span(asked), file.span(choice.test)[0]
    test = file.source(choice.test)
    npus = f"hasattr({torch}, {mark}npu{mark}) and {torch}.npu.is_available()"
    condition = f"{test[: start - at]}{npus}{test[end - at :]}"
    return file.insert(file.span(choice)[0], f"{_CUDA.sub('npu', file.source(body))} if {condition} else ")


def is_for_autocast(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a device belongs to torch.autocast or GradScaler, which turn themselves off without CUDA."""
    parent = file.parent(node)
    call = file.parent(parent) if isinstance(parent, ast.keyword) else parent
    name = (file.resolve(call.func) or "") if isinstance(call, ast.Call) else ""
    return name == "torch.autocast" or name.startswith("torch.amp.")


def is_beside_cpu(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a device is in a list with the CPU: ["cpu", "cuda"], [("cpu", 1), pytest.param("cuda", 2)]"""
    around: ast.AST = node
    while (parent := file.parent(around)) is not None and _is_row(parent):
        around = parent
    is_list = isinstance(around, (ast.List, ast.Tuple)) and not isinstance(file.parent(around), ast.Subscript)
    return is_list and any(is_constant(part, "cpu") for part in ast.walk(around) if isinstance(part, ast.Constant))


def _is_row(node: ast.AST) -> bool:
    """Return whether a node is a list, a tuple, pytest.param(...) or torch.device(...)."""
    called = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
    return isinstance(node, (ast.List, ast.Tuple)) or called in ("param", "device")


def fill_in_device(node: ast.AST, kind: str, mark: str, rest: str, file: PythonFile) -> Edits:
    """Return the edits for a string that is formatted: "cuda:{}".format(i)"""
    method = file.parent(node)
    call = file.parent(method) if isinstance(method, ast.Attribute) else None
    if method is None or call is None:
        return ()
    if not isinstance(call, ast.Call) or re.search(r"\{[^}:!]", rest) or not call.args:
        return (file.replace(node, f"({kind} + {mark}{rest}{mark})"),)
    opening = re.compile(r"\(\s*").search(file.text, file.span(method)[1])
    first = opening.end() if opening else file.span(call.args[0])[0]  # before the argument's own parentheses
    return file.replace(node, f"{mark}{{}}{rest}{mark}"), file.insert(first, f"{kind}, ")
