"""A parsed Python file: the positions of its nodes, what encloses them, and what their names mean."""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, wraps
from itertools import accumulate
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from npukit.source.names import Binding, Names
from npukit.source.place import Edit, Place

Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")
_P = ParamSpec("_P")
_T = TypeVar("_T")
_N = TypeVar("_N", bound=ast.AST)


def _lengths(text: str) -> list[int]:
    """The lengths of the lines including their ends, except for an unterminated last line."""
    if "\r" in text:
        return [len(line) for line in _LINE.findall(text)]
    return [len(line) + 1 for line in text.split("\n")[:-1]]


class PythonFile:
    """The syntax tree of a file together with its exact text.

    >>> file = PythonFile(Path("a.py"), "import torch as th\\nth.cuda.synchronize()")
    >>> file.resolve(file.tree.body[1].value.func)
    'torch.cuda.synchronize'
    """

    def __init__(
        self,
        path: Path,
        text: str,
        names: Names | None = None,
        root: Path | None = None,
        cell_of: Callable[[int], tuple[int, int]] | None = None,
    ) -> None:
        self.path = path
        self.text = text
        self._cell_of = cell_of
        self._starts = [0, *accumulate(_lengths(text))]
        self.names = names or Names(ast.parse(text), path, root)
        self.tree = self.names.tree
        self.nodes = self.names.nodes  # every node once, parents first, in source order
        self.answers: dict[Any, Any] = {}  # results of functions decorated with `per_file`
        self.newline = "\r\n" if "\r\n" in text else "\n"

    # Places

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The start and end of the node, as offsets into the text."""
        if isinstance(node, ast.Module):
            return 0, len(self.text)
        return (
            self._offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self._offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def source(self, node: ast.AST) -> str:
        """The source text of the node."""
        if isinstance(node, ast.Module):
            return self.text
        start, end = self.span(node)
        return self.text[start:end]

    def place(self, node: ast.AST) -> Place:
        """The position of the node, for a finding."""
        start, end = self.span(node) if hasattr(node, "lineno") else (0, 0)
        return self.place_of(start, end)

    def place_of(self, start: int, end: int) -> Place:
        line, column = self._line_and_column(start)
        end_line, end_column = self._line_and_column(end)
        cell = None
        if self._cell_of:
            cell, first = self._cell_of(line)
            line, end_line = line - first + 1, end_line - first + 1
        return Place(self.path, line, column, end_line, end_column, cell)

    def line_of(self, node: ast.AST) -> str:
        """The whole line on which the node starts, without its line ending."""
        number = getattr(node, "lineno", 1)
        return self.text[self._starts[number - 1] :].split("\n", 1)[0].rstrip("\r")

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        text = self.text[start : start + column]
        if text.isascii():
            return start + column
        # Syntax trees count columns in UTF-8 bytes.
        whole = self.text[start : self._starts[line] if line < len(self._starts) else None]
        return start + len(whole.encode()[:column].decode(errors="ignore"))

    def _line_and_column(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    # Structure

    @cached_property
    def by_type(self) -> Mapping[type[ast.AST], Sequence[ast.AST]]:
        """The nodes of each type."""
        nodes: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in self.nodes:
            nodes[type(node)].append(node)
        return nodes

    def of_type(self, kind: type[_N]) -> Sequence[_N]:
        """The nodes of one type, in source order.

        >>> file.of_type(ast.Call)
        [<ast.Call object>]
        """
        return self.by_type.get(kind, ())  # type: ignore[return-value]

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[ast.Attribute | ast.Name]]:
        """The names and attributes with this spelling."""
        nodes: dict[str, list[ast.Attribute | ast.Name]] = defaultdict(list)
        for node in self.by_type[ast.Attribute]:
            nodes[node.attr].append(node)  # type: ignore[attr-defined, arg-type]
        for node in self.by_type[ast.Name]:
            nodes[node.id].append(node)  # type: ignore[attr-defined, arg-type]
        return nodes

    @cached_property
    def _strings(self) -> Sequence[tuple[ast.AST, str]]:
        constants = ((node, node.value) for node in self.by_type[ast.Constant])  # type: ignore[attr-defined]
        return [(node, value) for node, value in constants if type(value) is str]

    def has(self, word: str) -> bool:
        """Whether the text contains a word anywhere; the result is cached.

        >>> file.has("cpp_extension")
        False
        """
        if word not in self.answers:
            self.answers[word] = word in self.text
        return bool(self.answers[word])

    def saying(self, kind: type[ast.AST], words: frozenset[str]) -> list[ast.AST]:
        """The names, attributes or keywords that equal one of the words, or the strings that contain one.

        >>> file.saying(ast.Attribute, frozenset({"is_cuda"}))  # x.is_cuda
        [<ast.Attribute object>]
        """
        if kind is ast.Constant:
            present = [word for word in words if self.has(word)]
            return [node for node, text in self._strings if any(word in text for word in present)] if present else []
        if kind is ast.keyword:
            return [node for node in self.of_type(ast.keyword) if node.arg in words]
        return [node for word in sorted(words) for node in self.by_name.get(word, ()) if type(node) is kind]

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.names.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that enclose this one, innermost first."""
        while (node := self.names.parents.get(node)) is not None:  # type: ignore[assignment]
            yield node

    def function(self, node: ast.AST) -> ast.AST:
        """The function that contains the node, or the module."""
        return next((ancestor for ancestor in self.ancestors(node) if isinstance(ancestor, Function)), self.tree)

    def class_around(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class that contains the node."""
        return next((ancestor for ancestor in self.ancestors(node) if isinstance(ancestor, ast.ClassDef)), None)

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that contains a statement."""
        parent = self.parent(statement)
        blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        return next((block for block in blocks if isinstance(block, list) and statement in block), [statement])

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that contains the node."""
        if isinstance(node, ast.stmt):
            return node
        return next(ancestor for ancestor in self.ancestors(node) if isinstance(ancestor, ast.stmt))

    # Meaning

    def resolve(self, node: ast.AST | None) -> str | None:
        """The full dotted name that a name or attribute refers to, through imports and aliases; None if unknown."""
        return self.names.resolve(node)

    def bindings(self, name: ast.Name) -> list[Binding]:
        """Everything that gives this name a value, in the scope that the name refers to."""
        return self.names.lookup(name)[1]

    def uses(self, name: ast.Name | ast.arg) -> list[ast.Name]:
        """Every place that reads the variable that this name refers to."""
        return self.names.uses(name)

    def argument(self, call: ast.Call, position: int | None, name: str) -> ast.expr | None:
        """A call's argument, by position or by name; None if it is not passed (or passed with * or **)."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if position is None or len(call.args) <= position:
            return None
        starred = any(isinstance(argument, ast.Starred) for argument in call.args[: position + 1])
        return None if starred else call.args[position]

    # Edits

    def replace(self, node: ast.AST, text: str) -> Edit:
        """Replace a node by other text."""
        return Edit(*self.span(node), text)

    def insert(self, offset: int, text: str) -> Edit:
        return Edit(offset, offset, text)

    def insert_line(self, offset: int, text: str) -> Edit:
        """Insert a whole line before the line at this offset, or at the end of the file."""
        lead = "" if offset == 0 or self.text[offset - 1] in "\r\n" else self.newline
        return self.insert(offset, f"{lead}{text}{self.newline}")

    def insert_import(self, text: str, after: str) -> Edit:
        """Add an import below the module-level import of the module `after`, or below the first imports."""
        for node in self.tree.body:
            if isinstance(node, ast.Import) and any(alias.name == after for alias in node.names):
                return self.insert_line(self.line_end(node), text)
        return self.insert_line(self.end_of_imports(), text)

    def line_end(self, node: ast.stmt) -> int:
        """The offset after the line on which a statement ends."""
        line = node.end_lineno or node.lineno
        return self._starts[line] if line < len(self._starts) else len(self.text)

    def line_start(self, node: ast.stmt) -> int:
        """The offset of the line on which a statement starts."""
        return self._starts[node.lineno - 1]

    def indent(self, node: ast.stmt) -> str:
        """The text that precedes a statement on its line."""
        return self.text[self.line_start(node) : self.span(node)[0]]

    def alone_on_lines(self, node: ast.stmt) -> bool:
        """Whether the lines of a statement contain nothing else, except comments."""
        after = self.text[self.span(node)[1] : self.line_end(node)].strip()
        return not self.indent(node).strip() and (not after or after.startswith("#"))

    def imports(self, module: str) -> bool:
        """Whether the file imports this module anywhere."""
        return module in self.imported

    @cached_property
    def imported(self) -> frozenset[str]:
        """The full names of all modules, and of names from modules, that the file imports."""
        names: set[str] = set()
        for node in self.names.imports:
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif not node.level and node.module:
                names.add(node.module)
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(names)

    def end_of_imports(self) -> int:
        """The offset after the docstring and imports at the start of the module, or after its first comments."""
        last: ast.stmt | None = None
        for node in self.tree.body:
            docstring = last is None and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not docstring and not isinstance(node, (ast.Import, ast.ImportFrom)):
                break
            last = node
        if last is not None:
            return self.line_end(last)
        match = re.match(r"(?:#.*(?:\r\n|\r|\n|$))*", self.text)
        return match.end() if match else 0


def per_file(function: Callable[Concatenate[PythonFile, _P], _T]) -> Callable[Concatenate[PythonFile, _P], _T]:
    """Cache what a function returns for a file for as long as the file is kept.

    >>> @per_file
    ... def kernels(file: PythonFile) -> frozenset[str]: ...
    """

    @wraps(function)
    def answer(file: PythonFile, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        question = (function, *args, *kwargs.values())
        if question not in file.answers:
            file.answers[question] = function(file, *args, **kwargs)
        known: _T = file.answers[question]
        return known

    return answer
