"""Helpers for syntax trees: child nodes, fields and statements."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def children(node: ast.AST) -> list[ast.AST]:
    """The direct children of a node in source order, without operators and contexts. Faster than the ast module's.

    >>> [type(node).__name__ for node in children(ast.parse("a + 1", mode="eval").body)]
    ['Name', 'Constant']
    """
    children: list[ast.AST] = []
    for name in FIELDS[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            children += [child for child in reversed(value) if child is not None]
        elif value is not None:
            children.append(value)
    children.reverse()
    return children


def last_name(node: ast.AST | None) -> str:
    """The last part of a dotted name; "" for anything else.

    >>> last_name(ast.parse("torch.cuda", mode="eval").body)
    'cuda'
    """
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all nodes below it, without operators and contexts.

    >>> [type(node).__name__ for node in inside(ast.parse("f(a)", mode="eval").body)]
    ['Call', 'Name', 'Name']
    """
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        stack += reversed(children(now))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements below a node, in source order.

    >>> [type(statement).__name__ for statement in statements(ast.parse("if a: b = f(a)"))]
    ['If', 'Assign']
    """
    stack = [node]
    while stack:
        now = stack.pop()
        if isinstance(now, ast.stmt) and now is not node:
            yield now
        for name in _BLOCKS.get(type(now), ()):
            stack += reversed(getattr(now, name))


_PLAIN = {"identifier", "int", "string", "constant", "expr_context", "operator", "unaryop", "boolop", "cmpop"}


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a node type that can hold other nodes, in reverse, ready for a stack. Fields with names, numbers
    and operators are left out.
    """
    described = re.findall(r"(\w+)[?*]? (\w+)", kind.__doc__ or "")  # "Attribute(expr value, identifier attr, ...)"
    plain = {name for what, name in described if what in _PLAIN}
    return tuple(name for name in reversed(kind._fields) if name not in plain)


FIELDS = {kind: _fields(kind) for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)}
_BLOCKS: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(name for name in reversed(kind._fields) if name in ("body", "handlers", "cases", "orelse", "finalbody"))
    for kind in FIELDS
    if issubclass(kind, (ast.mod, ast.stmt, ast.excepthandler, ast.match_case))
}
