"""What the parts of distributed migration share: lines beside statements, and where arguments go."""

from __future__ import annotations

import ast

from npukit.source import Edit, PythonFile


class Unseen(Exception):
    """A necessary part of the script, such as its loader or model, that cannot be identified."""

    def __init__(self, node: ast.AST, part: str, what: str, remedy: str) -> None:
        super().__init__(what)
        self.node, self.part, self.what, self.remedy = node, part, what, remedy


def line_before(statement: ast.stmt, text: str, file: PythonFile) -> Edit:
    return file.insert_line(file.line_start(statement), file.indent(statement) + text)


def line_after(statement: ast.stmt, text: str, file: PythonFile) -> Edit:
    return file.insert_line(file.line_end(statement), file.indent(statement) + text)


def parameter_for(argument: ast.AST, file: PythonFile) -> ast.arg | None:
    """Return the parameter of a function in this file that receives an argument."""
    parent = file.parent(argument)
    name = parent.arg if isinstance(parent, ast.keyword) else None
    call = file.parent(parent) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    for binding in file.bindings(call.func):
        if isinstance(binding.node, ast.FunctionDef):
            parameters = [*binding.node.args.posonlyargs, *binding.node.args.args]
            if name is None and argument in call.args and call.args.index(argument) < len(parameters):
                return parameters[call.args.index(argument)]
            return next((parameter for parameter in parameters if parameter.arg == name), None)
    return None
