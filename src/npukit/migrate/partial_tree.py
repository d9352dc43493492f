"""Parse only the changed part of a migrated file, since most functions stay the same and parsing takes long."""

from __future__ import annotations

import ast

from npukit.migrate.line_blocks import blocks
from npukit.source import Document, PythonFile, per_file
from npukit.source.document import parsed
from npukit.source.names import Names
from npukit.source.nodes import statements

_KINDS = {ast.FunctionDef: "def {}(): 0", ast.AsyncFunctionDef: "async def {}(): 0", ast.ClassDef: "class {}: 0"}


@per_file
def changed_tree(before: PythonFile, after: str) -> ast.Module:
    """Return the syntax tree of a changed file in which unchanged functions and classes have no body.

    Each keeps its length, so that lines stay where they are. Those that import something are parsed in full.
    """
    old, lines = before.text.split("\n"), after.split("\n")
    equal = [(a, a_end, b - a) for kind, a, a_end, b, _ in blocks(old, lines) if kind == "equal"]
    ends: dict[int, tuple[int, int]] = {}  # ends of definitions without a body, by first line
    seen = 0
    for node in _importing_nothing(before):
        first, last = first_line(node) - 1, node.end_lineno or node.lineno
        shift = next((by for a, a_end, by in equal if a <= first and last <= a_end), None)
        if shift is not None and node.lineno > seen:
            seen = last
            lines[first + shift : last + shift] = [""] * (last - first)
            head = old[node.lineno - 1][: node.col_offset] + _KINDS[type(node)].format(node.name)
            lines[node.lineno - 1 + shift] = head
            ends[node.lineno + shift] = last + shift, node.end_col_offset or 0
    tree = parsed("\n".join(lines))
    for statement in statements(tree):
        if statement.lineno in ends and type(statement) in _KINDS:
            statement.end_lineno, statement.end_col_offset = ends[statement.lineno]
    return tree


@per_file
def _importing_nothing(file: PythonFile) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Return the functions and classes of a file that import nothing, outer ones first."""
    definitions = (node for node in statements(file.tree) if isinstance(node, tuple(_KINDS)))
    return [node for node in definitions if "import" not in file.text[file.line_start(node) : file.line_end(node)]]  # type: ignore[misc]


def require_parsable(before: Document, after: Document) -> None:
    """Raise Unreadable if the file no longer parses. Unchanged parts are known to parse.

    >>> require_parsable(before, after)
    """
    if _tree(before, after) is None:
        after.must_parse()


def changed_part(before: Document, after: Document) -> PythonFile | None:
    """Return the changed part as a file with its names. Notebooks and files with other line ends are returned in full.

    >>> changed_part(before, after).imports("torch_npu")
    False
    """
    tree = _tree(before, after)
    return PythonFile(after.path, after.code, Names(tree, after.path, after.root), after.root) if tree else after.python


def _tree(before: Document, after: Document) -> ast.Module | None:
    """Return the changed tree, or None for a notebook or a file with other line ends."""
    in_parts = after.kind == "python" and "\r" not in after.code
    return changed_tree(before.python, after.code) if in_parts and before.python else None


def first_line(node: ast.stmt) -> int:
    """Return the line on which a statement starts, including its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return decorators[0].lineno if decorators else node.lineno
