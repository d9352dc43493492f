"""Reading training code: its calls, its loops, and which of them take a training step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.source import PythonFile, per_file

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Loop = ast.For | ast.While | ast.AsyncFor
LOOPS = (ast.For, ast.While, ast.AsyncFor)


def method(node: ast.AST) -> str:
    """The last name of what a call calls: "step" for `optimizer.step()`, "" when it is not called through a dot."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def receiver(call: ast.Call, file: PythonFile) -> str:
    """What a method is called on, as written."""
    return file.source(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Everything that runs when the node does: what is below it, without the bodies of functions and classes."""
    stack = list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        yield child
        if not isinstance(child, _FUNCTIONS):
            stack.extend(ast.iter_child_nodes(child))


@per_file
def step_loops(file: PythonFile) -> dict[Loop, ast.Call]:
    """The innermost loops that call backward(), with that call: one turn is one training step."""
    loops: dict[Loop, ast.Call] = {}
    for call in file.of_type(ast.Call):
        if method(call) == "backward" and (loop := enclosing_loop(call, file)):
            loops.setdefault(loop, call)
    return loops


def enclosing_loop(node: ast.AST, file: PythonFile) -> Loop | None:
    """The innermost loop around the node in the same function."""
    return next(enclosing_loops(node, file), None)


def enclosing_loops(node: ast.AST, file: PythonFile) -> Iterator[Loop]:
    """The loops around the node in the same function, the innermost first."""
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, LOOPS):
            yield ancestor
        if isinstance(ancestor, _FUNCTIONS):
            return


def runs_every_turn(node: ast.AST, loop: Loop, file: PythonFile) -> bool:
    """Whether the node is reached in every turn of the loop: no if, no except, no inner loop between them."""
    for ancestor in file.ancestors(node):
        if ancestor is loop:
            return True
        if isinstance(ancestor, (ast.If, ast.IfExp, ast.ExceptHandler, ast.BoolOp, *LOOPS, *_FUNCTIONS)):
            return False
    return False


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def has_double_star(call: ast.Call) -> bool:
    """Whether the call unpacks a dictionary or a list, whose contents the code does not show."""
    return any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def tolerates_failure(node: ast.AST, file: PythonFile) -> bool:
    """Whether the code copes when the node raises: it is under an `if` about availability, or in a `try` that does
    not raise in its turn."""
    child = node
    for parent in file.ancestors(node):
        ends = [handler.body[-1] for handler in parent.handlers] if isinstance(parent, ast.Try) else []
        if not all(isinstance(end, ast.Raise) for end in ends) and child in parent.body:  # type: ignore[attr-defined]
            return True
        if isinstance(parent, ast.If) and child in parent.body and "available" in file.source(parent.test).lower():
            return True
        child = parent
    return False
