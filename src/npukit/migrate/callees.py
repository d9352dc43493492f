"""What a call calls, where that is a function, a method or a class of the project."""

from __future__ import annotations

import ast

from npukit.source import PythonFile
from npukit.source.names import definition_of

_MAKES = {"new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"}  # methods of tensors


def parameter_of(func: ast.expr, position: int, file: PythonFile) -> ast.arg | None:
    """The parameter that takes an argument of this position.

    >>> parameter_of(call.func, 1, file)  # to_device(batch, "cuda"), of another file of the project
    """
    definition = _method(func, file) or definition_of(func, file.names, "")
    if isinstance(definition, ast.ClassDef):
        made = [each for each in definition.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        definition, position = (made[0] if made else None), position + 1
    elif definition is not None and isinstance(func, ast.Attribute) and _is_self(func.value):
        position += 1
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    return parameters[position] if position < len(parameters) else None


def takes_device(node: ast.AST, file: PythonFile) -> bool:
    """Whether a torch.device does as well as a name or number: torch.zeros(1, device="cuda"), x.to("cuda")"""
    parent = file.parent(node)
    by_name = isinstance(parent, ast.keyword) and parent.arg == "device"
    call = file.parent(parent) if by_name and parent else parent
    if not isinstance(call, ast.Call):
        return False
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    moves = method == "to" and (by_name or call.args[:1] == [node])
    return moves or (by_name and (method in _MAKES or (file.resolve(call.func) or "").startswith("torch.")))


def _method(func: ast.expr, file: PythonFile) -> ast.AST | None:
    """self.NAME, where the class around it has such a method."""
    if not isinstance(func, ast.Attribute) or not _is_self(func.value):
        return None
    around = next((each for each in file.ancestors(func) if isinstance(each, ast.ClassDef)), None)
    methods = around.body if around else ()
    return next((each for each in methods if isinstance(each, ast.FunctionDef) and each.name == func.attr), None)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
