"""What the names in a Python file mean: scopes, imports, aliases, and names that other files re-export."""

from __future__ import annotations

import ast
import builtins
import io
import os
import re
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from npukit.source.cache import per_project

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_BUILTINS = frozenset(dir(builtins))
_DEPTH = 8  # of aliases of aliases
_DEFINITION = re.compile(r"^(?:async def|def|class) (\w+)", re.MULTILINE)


class Binding(NamedTuple):
    """One thing that gives a name its value."""

    kind: str  # import, assign, parameter, definition, other
    node: ast.AST
    value: ast.expr | None = None  # what is assigned, or a parameter's default
    target: str = ""  # an import's full dotted name


class _Scope:
    """Where the scope of what follows changes: the body of a function or class; decorators and defaults are outside."""

    __slots__ = ("scope",)

    def __init__(self, scope: ast.AST) -> None:
        self.scope = scope


class Names:
    """Every node of a tree with its parent and scope, and every binding; made in one walk without recursion."""

    def __init__(self, tree: ast.Module, path: Path, root: Path | None = None) -> None:
        self.tree = tree
        self.path = path
        self.root = root
        self.nodes: list[ast.AST] = []
        self.parents: dict[ast.AST, ast.AST] = {}
        self._scopes: dict[ast.AST, ast.AST] = {}  # of names and scopes only
        self._bindings: dict[ast.AST, dict[str, list[Binding]]] = defaultdict(dict)
        self._stars: list[str] = []
        self._resolved: dict[ast.AST, str | None] = {}
        self._loads: dict[tuple[ast.AST | None, str], list[ast.Name]] | None = None
        self._globals: list[tuple[ast.AST, str]] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.aliases: dict[str, set[str]] = defaultdict(set)  # name: the last names of what it may stand for
        self._walk()

    def _walk(self) -> None:
        scope: ast.AST = self.tree
        stack: list[Any] = [scope]
        nodes, parents, scopes, fields = self.nodes, self.parents, self._scopes, _FIELDS
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is ast.Name:
                nodes.append(node)
                scopes[node] = scope
                if type(node.ctx) is not ast.Load:
                    self._bind_name(node, scope)
                continue
            if kind in _OTHERS:  # a change of the scope, or None, as a key of {**more} is
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
        """Note what a statement binds; the scope of what is inside it."""
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
                    self._stars.append(module)
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
        """The scope that the name refers to, and the bindings it has there."""
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
        """The function, class or module in which a name is written."""
        return self._scopes.get(name, self.tree)

    def bindings_in(self, scope: ast.AST | None, name: str) -> list[Binding]:
        return self._bindings.get(scope, {}).get(name, []) if scope is not None else []

    def uses(self, name: ast.Name | ast.arg) -> list[ast.Name]:
        """Every load of the variable that this name is."""
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

    def resolve(self, node: ast.AST | None, depth: int = _DEPTH) -> str | None:
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
        for module in self._stars:
            file = file_of(module, self.path, self.root)
            elsewhere = name if name == "torch" else f"{module}.{name}"  # a module that is not here passes torch on
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


def file_of(module: str, path: Path, root: Path | None) -> Path | None:
    """The project file that is a module to the file at `path` (dots in front: relative), or None."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    bases = [_above(path, level or 1), *((str(root), f"{root}/src") if root and not level else ())]
    candidates = (file for base in bases for file in _files_of(base, name) if file != path)
    return next(candidates, None)


@lru_cache(maxsize=256)
def _above(path: Path, level: int) -> str:
    """The folder so many levels above a file, as text: paths take long to compare."""
    return str(path.parents[level - 1]) if level <= len(path.parents) else ""


@per_project(maxsize=65536)
def _files_of(folder: str, module: str) -> tuple[Path, ...]:
    """The files that may be a module below a folder; asked once for each, as every name that it exports asks again."""
    where = "/".join((folder, *filter(None, module.split("."))))
    files = (f"{where}.py" if module else where, f"{where}/__init__.py")
    existing = (file for file in files if folder and os.path.isfile(file))  # noqa: PTH113 - most are none, and no Path
    return tuple(map(Path, existing))


_following: set[tuple[Path, str]] = set()


@per_project(maxsize=4096)
def exported(file: Path, name: str, root: Path | None) -> str | None:
    """What a name at the top of another file of the project refers to."""
    if (file, name) in _following or _defines(file, name):  # files that import from each other; nothing to follow
        return None
    _following.add((file, name))
    try:
        names = names_of(file, root)
        return names._resolve_name(ast.Name(name, ast.Load()), _DEPTH) if names else None
    finally:
        _following.discard((file, name))


def _defines(file: Path, name: str) -> bool:
    """Whether the name is a function or class of the file itself, as most are: seen without parsing the file."""
    return name in _definitions_of(file)


@per_project(maxsize=4096)
def _definitions_of(file: Path) -> frozenset[str]:
    return frozenset(_DEFINITION.findall(text_of(file)))


@per_project(maxsize=8192)
def origin_of(target: str, path: Path, root: Path | None, depth: int = _DEPTH) -> tuple[Path | None, str]:
    """The file of the project that a full dotted name comes from, through what packages pass on, and its name there;
    "" for the name where the target is a module.

    >>> origin_of("ours.ops.scan", Path("train.py"), Path())  # ours/ops/__init__.py: from .kernels import scan
    (PosixPath('ours/ops/kernels.py'), 'scan')
    """
    if module := file_of(target, path, root):
        return module, ""
    package, _, name = target.rpartition(".")
    file = file_of(package or ".", path, root) if package or target.startswith(".") else None
    if file is None or depth == 0 or _defines(file, name):
        return file, name
    names = names_of(file, root) if _has(file, "import") and (_has(file, name) or _has(file, "*")) else None
    imported = [each.target for each in names.bindings_in(names.tree, name) if each.kind == "import"] if names else []
    for passed_on in imported or [f"{star}.{name}" for star in names._stars] if names else ():
        where, inner = origin_of(passed_on, file, root, depth - 1)
        if where is not None and (imported or _defines(where, inner)):
            return where, inner
    return file, name


@per_project(maxsize=4096)
def _has(file: Path, text: str) -> bool:
    return text in text_of(file)


@per_project(maxsize=64)
def text_of(file: Path) -> str:
    """The text of a file, for those that look for words in it; "" where it cannot be read.

    >>> text_of(Path("setup.py")).partition("\\n")[0]
    'from setuptools import setup'
    """
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@per_project(maxsize=512)
def names_of(file: Path, root: Path | None) -> Names | None:
    """The names of another file of the project; None where it cannot be read."""
    try:
        data = file.read_bytes()
        return named(data.decode(encoding_of(data)), file, root)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@per_project(maxsize=512)
def named(code: str, path: Path, root: Path | None) -> Names:
    """The names in some code; kept, since a file is read for itself and for those that import it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Names(ast.parse(code), path, root)


def encoding_of(data: bytes) -> str:
    """The encoding that a Python file declares, or UTF-8."""
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]


def definition_of(func: ast.expr, names: Names, containing: str) -> ast.FunctionDef | ast.ClassDef | None:
    """The function or class of the project that a name is: in the same file, or in one that it is imported from.

    Another file is parsed only if it has the text that the caller will look for in the definition.
    """
    definition = where_defined(func, names, containing)
    return definition[0] if definition else None


def where_defined(func: ast.expr, names: Names, containing: str) -> tuple[ast.FunctionDef | ast.ClassDef, Names] | None:
    """The same with the names of the file that it is in."""
    if isinstance(func, ast.Attribute):  # module.function
        target = names.resolve(func)
        return _defined(target, names, containing) if target else None
    for binding in names.lookup(func)[1] if isinstance(func, ast.Name) else ():
        if isinstance(binding.node, (ast.FunctionDef, ast.ClassDef)):
            return binding.node, names
        if binding.kind == "import" and (definition := _defined(binding.target, names, containing)):
            return definition
    return None


def _defined(target: str, names: Names, containing: str) -> tuple[ast.FunctionDef | ast.ClassDef, Names] | None:
    """What a full dotted name is in the project's own files; a package may pass it on from another of its files."""
    for _ in range(_DEPTH):
        module, _, name = target.rpartition(".")
        file = file_of(module or ".", names.path, names.root) if module or target.startswith(".") else None
        defining = names_of(file, names.root) if file and _has(file, containing) and _has(file, name) else None
        bindings = defining.bindings_in(defining.tree, name) if defining else []
        for binding in bindings:
            if defining and isinstance(binding.node, (ast.FunctionDef, ast.ClassDef)):
                return binding.node, defining
        passed_on = [binding.target for binding in bindings if binding.kind == "import"]
        if defining is None or not passed_on:
            return None
        names, target = defining, passed_on[0]
    return None


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below one, as they are written, but for operators and contexts; quicker than ast's.

    >>> [type(each).__name__ for each in children(ast.parse("a + 1", mode="eval").body)]
    ['Name', 'Constant']
    """
    children: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if type(value) is list:
            children += [child for child in reversed(value) if child is not None]
        elif value is not None:
            children.append(value)
    children.reverse()
    return children


def last_name(node: ast.AST | None) -> str:
    """The last part of a dotted name; "" of what is none.

    >>> last_name(ast.parse("torch.cuda", mode="eval").body)
    'cuda'
    """
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, but for operators and contexts.

    >>> [type(each).__name__ for each in inside(ast.parse("f(a)", mode="eval").body)]
    ['Call', 'Name', 'Name']
    """
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        stack += reversed(children(now))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements below a node, as they are written.

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

_PLAIN = {"identifier", "int", "string", "constant", "expr_context", "operator", "unaryop", "boolop", "cmpop"}


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields of a kind of node that can hold other nodes, the last first, as a stack wants them; those of names,
    numbers and operators are left out."""
    described = re.findall(r"(\w+)[?*]? (\w+)", kind.__doc__ or "")  # "Attribute(expr value, identifier attr, ...)"
    plain = {name for what, name in described if what in _PLAIN}
    return tuple(name for name in reversed(kind._fields) if name not in plain)


_FIELDS = {kind: _fields(kind) for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)}
_BLOCKS: dict[type[ast.AST], tuple[str, ...]] = {
    kind: tuple(name for name in reversed(kind._fields) if name in ("body", "handlers", "cases", "orelse", "finalbody"))
    for kind in _FIELDS
    if issubclass(kind, (ast.mod, ast.stmt, ast.excepthandler, ast.match_case))
}
