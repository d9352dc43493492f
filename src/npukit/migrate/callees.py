"""Find the function, method or class of the project that a call calls."""

from __future__ import annotations

import ast

from npukit.source import PythonFile
from npukit.source.definitions import definition_of

_MAKES = {"new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"}  # methods of tensors


def parameter_of(func: ast.expr, position: int, file: PythonFile) -> ast.arg | None:
    """Return the parameter that receives the argument at a position.

    >>> parameter_of(call.func, 1, file)  # to_device(batch, "cuda"), of another file of the project
    """
    definition = own_method(func, file) or definition_of(func, file.names, "")
    if isinstance(definition, ast.ClassDef):
        made = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        definition, position = (made[0] if made else None), position + 1
    elif definition is not None and definition is own_method(func, file):
        position += 1
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    return parameters[position] if position < len(parameters) else None


def is_module_lookup(func: ast.expr, file: PythonFile) -> bool:
    """Return whether a function of the project uses a device to look up torch's module: getattr(torch, device.type)

    torch.cpu has few of the functions of torch.cuda, so such a function does not work with a device that may be the
    CPU.
    """
    definition = definition_of(func, file.names, "getattr(torch")
    return isinstance(definition, ast.FunctionDef) and "getattr(torch, " in ast.unparse(definition)


def is_device_argument(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a torch.device may replace a name or number: torch.zeros(1, device="cuda"), x.to("cuda")"""
    parent = file.parent(node)
    by_name = isinstance(parent, ast.keyword) and parent.arg == "device"
    call = file.parent(parent) if by_name and parent else parent
    if not isinstance(call, ast.Call):
        return False
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    moves = method == "to" and (by_name or call.args[:1] == [node])
    return moves or (by_name and (method in _MAKES or (file.resolve(call.func) or "").startswith("torch.")))


def own_method(func: ast.expr, file: PythonFile) -> ast.AST | None:
    """Return the method that `self.NAME`, or NAME of an object made in this file, refers to."""
    if not isinstance(func, ast.Attribute):
        return None
    owner = file.class_around(func) if _is_self(func.value) else _class_of(func.value, file)
    methods = owner.body if owner else ()
    return next((node for node in methods if isinstance(node, ast.FunctionDef) and node.name == func.attr), None)


def _class_of(value: ast.expr, file: PythonFile) -> ast.ClassDef | None:
    """Return the class of a variable that holds nothing but None and instances of one class of the file."""
    bindings = file.bindings(value) if isinstance(value, ast.Name) else ()
    values = [binding.value for binding in bindings if not isinstance(binding.value, ast.Constant)]
    classes = [node.func.id for node in values if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if not classes or len(classes) != len(values):
        return None
    definitions = (node for node in file.tree.body if isinstance(node, ast.ClassDef) and node.name == classes[0])
    return next(definitions, None)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
