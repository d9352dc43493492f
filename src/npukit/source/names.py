"""Resolve the names in a Python file: scopes, imports, aliases, and names that other files re-export."""

from __future__ import annotations

import ast
import builtins
import warnings
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from npukit.source.cache import per_project
from npukit.source.modules import defines, encoding_of, file_of
from npukit.source.nodes import FIELDS

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_BUILTINS = frozenset(dir(builtins))
DEPTH = 8  # maximum length of a chain of aliases


class Binding(NamedTuple):
    """One construct that gives a name its value."""

    kind: str  # import, assign, parameter, definition or other
    node: ast.AST
    value: ast.expr | None = None  # the assigned expression, or a parameter's default
    target: str = ""  # an import's full dotted name


class _Scope:
    """Marks a change of scope in the walk: the body of a function or class, without decorators and defaults."""

    __slots__ = ("scope",)

    def __init__(self, scope: ast.AST) -> None:
        self.scope = scope


class Names:
    """Every node of a tree with its parent and scope, and every binding, collected in one walk without recursion."""

    def __init__(self, tree: ast.Module, path: Path, root: Path | None = None) -> None:
        self.tree = tree
        self.path = path
        self.root = root
        self.nodes: list[ast.AST] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, ast.AST] = {}  # of names and scopes only
        self._bindings: dict[ast.AST, dict[str, list[Binding]]] = defaultdict(dict)
        self.stars: list[str] = []
        self._resolved: dict[ast.AST, str | None] = {}
        self._loads: dict[tuple[ast.AST | None, str], list[ast.Name]] | None = None
        self._globals: list[tuple[ast.AST, str]] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.aliases: dict[str, set[str]] = defaultdict(set)  # by name: the last parts of its targets
        self._walk()

    def _walk(self) -> None:
        scope: ast.AST = self.tree
        stack: list[Any] = [scope]
        nodes, parents, scopes, fields = self.nodes, self.parents, self._scopes, FIELDS
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is ast.Name:
                nodes.append(node)
                scopes[node] = scope
                if type(node.ctx) is not ast.Load:
                    self._bind_name(node, scope)
                continue
            if kind in _OTHERS:  # a change of scope; or None, the key of {**more}
                scope = node.scope if node else scope
                continue
            nodes.append(node)
            if kind in _LEAVES:
                continue
            inner = self._bind(node, scope) if kind in _BINDERS else scope
            for name in fields[kind]:
                value = getattr(node, name)
                if inner is not scope and name == "body":
                    value = [_Scope(inner), *(value if type(value) is list else [value]), _Scope(scope)]
                if type(value) is not list:
                    if value is not None:
                        parents[value] = node
                        stack.append(value)
                elif value:
                    for child in value:
                        parents[child] = node
                    stack += value[::-1]
        parents.pop(None, None)  # type: ignore[call-overload]
        for scope, name in self._globals:
            for binding in self._bindings[scope].pop(name, []):
                self._add(self.tree, name, binding)

    def _add(self, scope: ast.AST, name: str, binding: Binding) -> None:
        self._bindings[scope].setdefault(name, []).append(binding)

    def _bind(self, node: ast.AST, scope: ast.AST) -> ast.AST:
        """Record what a statement binds, and return the scope of its body."""
        if isinstance(node, ast.Import):
            self.imports.append(node)
            for alias in node.names:
                target = alias.name if alias.asname else alias.name.split(".")[0]
                self._add(scope, alias.asname or target, Binding("import", node, target=target))
                self._note_alias(alias)
        elif isinstance(node, ast.ImportFrom):
            self.imports.append(node)
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    self.stars.append(module)
                else:
                    target = f"{module}.{alias.name}" if not module.endswith(".") else module + alias.name
                    self._add(scope, alias.asname or alias.name, Binding("import", node, target=target))
                    self._note_alias(alias)
        elif isinstance(node, _FUNCTIONS):
            if not isinstance(node, ast.Lambda):
                self._add(scope, node.name, Binding("definition", node))
            self._scopes[node] = scope
            self._bind_parameters(node)
            return node
        elif isinstance(node, ast.ClassDef):
            self._add(scope, node.name, Binding("definition", node))
            self._scopes[node] = scope
            return node
        elif isinstance(node, ast.ExceptHandler) and node.name:
            self._add(scope, node.name, Binding("other", node))
        elif isinstance(node, ast.Global):
            self._globals += [(scope, name) for name in node.names]
        return scope

    def _note_alias(self, alias: ast.alias) -> None:
        if alias.asname:
            self.aliases[alias.asname].add(alias.name.rpartition(".")[2])

    def _bind_parameters(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [*zip(plain, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
        for parameter, default in pairs:
            self._add(node, parameter.arg, Binding("parameter", parameter, default))
            self._scopes[parameter] = node
        for rest in (arguments.vararg, arguments.kwarg):
            if rest:
                self._add(node, rest.arg, Binding("parameter", rest))

    def _bind_name(self, node: ast.Name, scope: ast.AST) -> None:
        parent = self.parents[node]
        value: ast.expr | None = None
        if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            value = parent.value
            if isinstance(value, (ast.Attribute, ast.Name)):
                self.aliases[node.id].add(value.attr if isinstance(value, ast.Attribute) else value.id)
        kind = "assign" if value is not None else "other"
        self._add(scope, node.id, Binding(kind, node, value))

    def lookup(self, name: ast.Name | ast.arg) -> tuple[ast.AST | None, list[Binding]]:
        """The scope that the name refers to, and its bindings there."""
        text = name.id if isinstance(name, ast.Name) else name.arg
        scope: ast.AST | None = self._scopes.get(name, self.tree)
        first = True
        while scope is not None:
            if (first or not isinstance(scope, ast.ClassDef)) and text in self._bindings.get(scope, ()):
                return scope, self._bindings[scope][text]
            first = False
            scope = self._scopes.get(scope) if scope is not self.tree else None
        return None, []

    def scope_of(self, name: ast.AST) -> ast.AST:
        """The function, class or module in which a name occurs."""
        return self._scopes.get(name, self.tree)

    def bindings_in(self, scope: ast.AST | None, name: str) -> list[Binding]:
        return self._bindings.get(scope, {}).get(name, []) if scope is not None else []

    def uses(self, name: ast.Name | ast.arg) -> list[ast.Name]:
        """Every load of the variable that this name refers to."""
        if self._loads is None:
            self._loads = defaultdict(list)
            for node in self.nodes:
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    self._loads[self.lookup(node)[0], node.id].append(node)
        text = name.id if isinstance(name, ast.Name) else name.arg
        return self._loads.get((self.lookup(name)[0], text), [])

    @cached_property
    def read(self) -> frozenset[str]:
        """Every name that is read anywhere in the file."""
        return frozenset(node.id for node in self._scopes if type(node) is ast.Name and type(node.ctx) is ast.Load)

    def resolve(self, node: ast.AST | None, depth: int = DEPTH) -> str | None:
        """The full dotted name of a name or attribute, or None."""
        if node is None or depth == 0:
            return None
        if node in self._resolved:
            return self._resolved[node]
        result = None
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value, depth)
            result = base and f"{base}.{node.attr}"
        elif isinstance(node, ast.Name):
            result = self._resolve_name(node, depth)
        self._resolved[node] = result
        return result

    def _resolve_name(self, node: ast.Name, depth: int) -> str | None:
        _, bindings = self.lookup(node)
        if not bindings:
            return self._from_star(node.id)
        imports = [binding for binding in bindings if binding.kind == "import"]
        if imports:
            return self._canonical(imports[0].target, depth)
        if len(bindings) == 1 and bindings[0].kind == "assign":
            return self.resolve(bindings[0].value, depth - 1)
        return None

    def _from_star(self, name: str) -> str | None:
        if name in _BUILTINS:
            return name
        for module in self.stars:
            file = file_of(module, self.path, self.root)
            elsewhere = name if name == "torch" else f"{module}.{name}"  # other packages may re-export torch
            target = exported(file, name, self.root) if file else elsewhere
            if target:
                return target
        return None

    def _canonical(self, target: str, depth: int) -> str:
        """Follow an import into the project's own files, where the name may be an import again."""
        if target.split(".")[0] in ("torch", "os", "sys", "apex"):
            return target
        module, _, name = target.rpartition(".")
        if not module.strip("."):
            module = module + "." if module else ("." if target.startswith(".") else "")
        file = file_of(module, self.path, self.root) if module else None
        return (exported(file, name, self.root) if file and depth > 1 else None) or target


_following: set[tuple[Path, str]] = set()


@per_project(maxsize=4096)
def exported(file: Path, name: str, root: Path | None) -> str | None:
    """What a module-level name of another file of the project refers to."""
    if (file, name) in _following or defines(file, name):  # a circular import, or its own definition
        return None
    _following.add((file, name))
    try:
        names = names_of(file, root)
        return names._resolve_name(ast.Name(name, ast.Load()), DEPTH) if names else None
    finally:
        _following.discard((file, name))


@per_project(maxsize=512)
def names_of(file: Path, root: Path | None) -> Names | None:
    """The names of another file of the project; None if it cannot be read."""
    try:
        data = file.read_bytes()
        return named(data.decode(encoding_of(data)), file, root)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@per_project(maxsize=512)
def named(code: str, path: Path, root: Path | None) -> Names:
    """The names in a piece of code. Cached, because a file is read for itself and for the files that import it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Names(ast.parse(code), path, root)


_LEAVES = {ast.Constant, ast.Pass, ast.Break, ast.Continue}
_OTHERS = {_Scope, type(None)}
_BINDERS = {
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.Global,
}
