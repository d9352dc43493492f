"""Read training code: its calls, its loops, and which loops perform training steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.source import PythonFile, per_file

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
Loop = ast.For | ast.While | ast.AsyncFor
LOOPS = (ast.For, ast.While, ast.AsyncFor)


def method(node: ast.AST) -> str:
    """Return the name of a called method, such as "step" for `optimizer.step()`, or ""."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def receiver(call: ast.Call, file: PythonFile) -> str:
    """Return the source of the object that a method is called on."""
    return file.source(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield everything that runs when a node does, which excludes the bodies of functions and classes in it."""
    stack = list(ast.iter_child_nodes(node))
    while stack:
        child = stack.pop()
        yield child
        if not isinstance(child, _FUNCTIONS):
            stack.extend(ast.iter_child_nodes(child))


@per_file
def step_loops(file: PythonFile) -> dict[Loop, ast.Call]:
    """Return the innermost loops that call backward(), with that call. One turn is one training step."""
    loops: dict[Loop, ast.Call] = {}
    for call in file.of_type(ast.Call):
        if method(call) == "backward" and (loop := enclosing_loop(call, file)):
            loops.setdefault(loop, call)
    return loops


def enclosing_loop(node: ast.AST, file: PythonFile) -> Loop | None:
    """The innermost loop around the node in the same function."""
    return next(enclosing_loops(node, file), None)


def enclosing_loops(node: ast.AST, file: PythonFile) -> Iterator[Loop]:
    """Yield the loops around a node in the same function, innermost first."""
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, LOOPS):
            yield ancestor
        if isinstance(ancestor, _FUNCTIONS):
            return


def runs_every_turn(node: ast.AST, loop: Loop, file: PythonFile) -> bool:
    """Return whether a node runs in every turn of a loop, with no branch or inner loop in between."""
    for ancestor in file.ancestors(node):
        if ancestor is loop:
            return True
        if isinstance(ancestor, (ast.If, ast.IfExp, ast.ExceptHandler, ast.BoolOp, *LOOPS, *_FUNCTIONS)):
            return False
    return False


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def has_double_star(call: ast.Call) -> bool:
    """Return whether a call unpacks arguments, which the code does not show."""
    return any(keyword.arg is None for keyword in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def tolerates_failure(node: ast.AST, file: PythonFile) -> bool:
    """Return whether code copes with a failure of a node, by an availability check or a `try`."""
    child = node
    for parent in file.ancestors(node):
        ends = [handler.body[-1] for handler in parent.handlers] if isinstance(parent, ast.Try) else []
        if not all(isinstance(end, ast.Raise) for end in ends) and child in parent.body:  # type: ignore[attr-defined]
            return True
        if isinstance(parent, ast.If) and child in parent.body and "available" in file.source(parent.test).lower():
            return True
        child = parent
    return False
