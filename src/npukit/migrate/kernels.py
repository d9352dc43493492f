"""Which names of a file lead to kernels for CUDA: its own, or those of another file of the project.

@triton.jit                          from ours.triton_ops import permute      from flash_attn import flash_attn_func
def _scale_kernel(x): ...            try: import apex; HAS_APEX = True        import cupy as cp
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from npukit.facts import libraries
from npukit.source import PythonFile
from npukit.source.names import children, file_of, inside

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Import = ast.Import | ast.ImportFrom
_TOP_IMPORT = re.compile(r"\n(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*|[^\n#]*)|import[ \t]+([\w.]+))")
_BESIDE = re.compile(r"\nfrom \.(\w+) import (\([^)]*\)|.*)")
_COMPILED = re.compile(r"\n[ \t]*@(?:triton|tilelang)\.(?!testing\b)")
_ASKS = re.compile(r"triton|cuda|device|backend|impl|kernel|fused|avail|have|has_|use_|is_", re.IGNORECASE)
_ONLY_ASKED = re.compile(r"\W*(?:(?:HAVE|HAS|IS|check|is|has)_\w+|testing)\W*")
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
_MISSING = re.compile(r"ImportError|\bException|NotFound")
_EXTENSION = re.compile(r"(?:\w+_cuda|\w*_ext|_[a-z]\w+)")
_BUILT = re.compile(r"\.cuh?[\"']|\bCUDAExtension\b|\bcuda_sources\b|\bwith_cuda=True")  # from CUDA's sources
_LOADED = re.compile(r"\n\w+ = (?:[\w.]+\.)?load(?:_inline)?\(")
_LOADS = (ast.If, ast.Try, ast.Import, ast.ImportFrom, ast.Assign, ast.Return, ast.Global, ast.Expr)
_BUILDERS = ("setup.py", "build.py", "backend.py")


def modules(node: _Import) -> list[str]:
    """The modules that a statement may import: numba and numba.cuda, of `from numba import cuda`

    >>> modules(ast.parse("from numba import cuda").body[0])
    ['numba', 'numba.cuda']
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    head = "." * node.level + (node.module or "")
    return [head, *(f"{head}.{alias.name}" for alias in node.names)]


def needed(node: _Import) -> libraries.Library | None:
    """The library for CUDA alone that a statement imports."""
    found = (libraries.needs_cuda(module) for module in modules(node))
    return next(filter(None, found), None)


@lru_cache(maxsize=4)
def strong_names(file: PythonFile) -> dict[str, str]:
    """The names at the top of a file that only CUDA machines have, each with the library that it comes from: what is
    imported from one, from a file of the project that needs one, and the file's own kernels."""
    found: dict[str, str] = {}
    for node in file.names.imports:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            if (library := _needed_by(node, alias, file)) and _is_always(name, node, file):
                found[name] = library
    kernels = "triton" in file.text or "tilelang" in file.text
    own = compiled(_at_top(file.tree.body)) if kernels else frozenset[str]()
    return found | dict.fromkeys(own, "Triton")


def _needed_by(node: _Import, alias: ast.alias, file: PythonFile) -> str:
    module = alias.name if isinstance(node, ast.Import) else node.module or ""
    library = libraries.needs_cuda(module) or libraries.needs_cuda(f"{module}.{alias.name}")
    if library:
        return "" if alias.name == "triton" else library.name  # whose kernels are looked for one by one
    if extension := _extension(node, alias, file):
        return extension
    if isinstance(node, ast.Import):
        return ""
    head = "." * node.level + module
    for where in (file_of(each, file.path, file.names.root) for each in (head, f"{head}.{alias.name}")):
        if library := needed_at_top(where):
            return library.name
        if alias.name in launchers(where):
            return "Triton"
        if _builds_kernels(where):
            return "a kernel that nvcc compiles"
    return ""


def _extension(node: _Import, alias: ast.alias, file: PythonFile) -> str:
    """What the project's build makes of CUDA sources: import ops_cuda; from . import ops_cuda; from ._ext import ops"""
    module = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or alias.name)
    return module.lstrip(".") if is_extension(module, file.path, file.names.root) else ""


@lru_cache(maxsize=4096)
def is_extension(module: str, path: Path, root: Path | None) -> bool:
    """Whether a module is what the project's build makes of CUDA sources.

    >>> is_extension("ops_cuda", Path("project/ops.py"), Path("project"))
    True
    """
    name = module.rpartition(".")[2]
    if not _EXTENSION.fullmatch(name) or file_of(module, path, root) is not None:
        return False
    if name.endswith("_cuda") or name == "_ext":
        return name not in _text(path.with_name("__init__.py")) if module == f".{name}" else True
    folders = (each for each in path.parents if root and each.is_relative_to(root))
    return any(re.search(rf"[\"'.]{name}[\"']", _builders(folder)) for folder in folders)


@lru_cache(maxsize=1024)
def _builders(folder: Path) -> str:
    """The files of a folder that build extensions from CUDA sources."""
    texts = (_text(folder / name) for name in _BUILDERS)
    return "\n".join(text for text in texts if _BUILT.search(text))


def extension_at_top(path: Path, root: Path | None) -> str:
    """The extension of CUDA sources without which a file of the project cannot be imported, or "" """
    found = (module for module, _ in _top_imports(path) if is_extension(module, path, root))
    return next(found, "").lstrip(".")


def loads_extension(function: ast.FunctionDef | ast.AsyncFunctionDef, file: PythonFile) -> str:
    """The extension that a function does nothing but load: if BACKEND is None: import _scan; BACKEND = _scan"""
    imports: list[_Import] = []
    for each in inside(function):
        if isinstance(each, ast.stmt) and each is not function:
            if not isinstance(each, _LOADS) or _calls(each):
                return ""
            imports += [each] if isinstance(each, _Import) else []
    found = [_needed_by(each, alias, file) for each in imports for alias in each.names]
    return found[0] if found and all(found) else ""


def _calls(statement: ast.stmt) -> bool:
    return isinstance(getattr(statement, "value", None), ast.Call)


@lru_cache(maxsize=1024)
def _builds_kernels(path: Path | None) -> bool:
    """Whether importing a file of the project compiles CUDA sources: _backend = load(sources=["scan.cu"])"""
    text = _text(path)
    return "cpp_extension" in text and bool(_LOADED.search(text) and _BUILT.search(text))


def _is_always(name: str, node: _Import, file: PythonFile) -> bool:
    """Whether nothing else stands for the name where the library is missing: except ImportError: te = None"""
    bound = (each for each in file.names.bindings_in(file.tree, name) if each.node is not node)
    return all(
        isinstance(each.value, ast.Constant)
        or libraries.needs_cuda(each.target)
        or is_extension(each.target, file.path, file.names.root)
        for each in bound
    )


@lru_cache(maxsize=4)
def weak_names(file: PythonFile) -> dict[str, str]:
    """The names that show, beside a question for CUDA, what the answer is for: the strong ones, the file's functions
    that always use them, short names of libraries, and what depends on whether one could be imported."""
    found = dict(strong_names(file))
    for node in file.names.imports:
        for alias in node.names:
            asname = alias.asname if isinstance(node, ast.Import) else alias.asname or alias.name
            is_short = isinstance(node, ast.Import) or (node.module or "").endswith("transformer_engine")
            library = libraries.named(alias.name if isinstance(node, ast.Import) else node.module or "")
            if is_short and asname and library:
                found[asname] = library.name
    for part in file.tree.body:
        names = [each for statement in part.body for each in inside(statement)] if isinstance(part, ast.Try) else []
        imported = (each for node in names if isinstance(node, _Import) for each in modules(node))
        needed_there = next(filter(None, map(_for_cuda, imported)), "")
        if needed_there:
            stored = (each.id for each in names if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
            found |= dict.fromkeys(stored, needed_there)
    always = _always_using(frozenset(strong_names(file)), file.tree.body)
    return found | {name: "kernels" for name in always if name not in found and not name.startswith("test")}


def _for_cuda(module: str) -> str:
    library = libraries.named(module)
    return library.name if library else module if module.endswith("_cuda") else ""


@lru_cache(maxsize=4)
def imports_kernels(file: PythonFile) -> bool:
    """Whether a file, or one of the project that it imports, has kernels for CUDA, which `is_cuda` then is about."""
    kernel = re.compile(r"_cuda$|(?:^|[._])kernels$|_ext$")
    for node in file.names.imports:
        for module in modules(node):
            library = libraries.imported(module) or libraries.named(module)
            is_kernel = kernel.search(module) or (library and library.needs_cuda)
            if is_kernel and not module.startswith("apex") and not module.endswith("_to_cuda"):
                return True
            where = file_of(module, file.path, file.names.root) if isinstance(node, ast.ImportFrom) else None
            if any(kernel.search(each) or libraries.needs_cuda(each) for each, _ in _top_imports(where)):
                return True
    return False


@lru_cache(maxsize=1024)
def needed_at_top(path: Path | None) -> libraries.Library | None:
    """The library for CUDA without which a file of the project cannot be imported."""
    for module, names in _top_imports(path):
        library = libraries.needs_cuda(module)
        if library and not (names and only_asks(module, names, "")):
            return library
    return None


def only_asks(module: str, names: str, text: str) -> bool:
    """from triton_ops import HAS_TRITON; import triton, for triton.testing alone, which needs no kernel"""
    if names:
        return all(_ONLY_ASKED.fullmatch(name) for name in re.split(r",\s*(?=\w)", names.partition(" as ")[0]))
    return module == "triton" and not re.search(r"\btriton\.(?!testing\b)|\btl\.", text)


@lru_cache(maxsize=1024)
def launchers(path: Path | None, with_others: bool = True) -> frozenset[str]:
    """The kernels of a file, and of those beside it that it imports, and what always launches them."""
    text = _text(path)
    others = frozenset(_imported_launchers(path, text)) if path and with_others else frozenset[str]()
    if not others and not _COMPILED.search(text):
        return frozenset()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return frozenset()
    return _always_using(others | compiled(_at_top(body)), body)


def _at_top(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a file, also those that it runs where a library is there: if HAVE_TRITON: @triton.jit ..."""
    inner = (each.body for each in body if isinstance(each, (ast.If, ast.Try)))
    return [*body, *(statement for statements in inner for statement in statements)]


def _imported_launchers(path: Path, text: str) -> Iterator[str]:
    """from .chunk_h import chunk_forward"""
    for module, names in _BESIDE.findall(text):
        found = launchers(path.with_name(f"{module}.py"), with_others=False)
        yield from (name for name in re.findall(r"\w+", names) if name in found)


def compiled(body: list[ast.stmt]) -> frozenset[str]:
    """The functions among some statements that are kernels: @triton.jit def scale(x): ..."""
    functions = (each for each in body if isinstance(each, ast.FunctionDef))
    return frozenset(
        each.name
        for each in functions
        if any(_COMPILED.match(f"\n@{ast.unparse(mark)}") for mark in each.decorator_list)
    )


def _always_using(names: frozenset[str], body: list[ast.stmt]) -> frozenset[str]:
    """These names, and the functions and classes of a file that use one of them whatever the device."""
    if not names:
        return names
    runs = {each.name: set(_used(each)) for each in body if isinstance(each, Definition)}
    while more := {name for name, used in runs.items() if name not in names and not used.isdisjoint(names)}:
        names |= more
    return names


def _used(definition: Definition) -> Iterator[str]:
    """The names that a function uses, but for what it does by the device or by what is installed; of a class, what its
    `forward` does."""
    stack: list[ast.AST] = list(definition.body)
    if isinstance(definition, ast.ClassDef):
        stack = [part for each in definition.body if getattr(each, "name", "") == "forward" for part in each.body]  # type: ignore[attr-defined]
    while stack:
        now = stack.pop()
        if isinstance(now, ast.Name):
            yield now.id
        elif isinstance(now, (ast.If, ast.IfExp, ast.While)) and _ASKS.search(ast.unparse(now.test)):
            stack.append(now.test)
        elif not may_lack_it(now) and not isinstance(now, _RUN_LATER):
            stack += children(now)


def may_lack_it(node: ast.AST) -> bool:
    """Whether what fails in a `try` is let pass, as where something is not installed."""
    handlers = node.handlers if isinstance(node, ast.Try) else ()
    return any(each.type is None or _MISSING.search(ast.unparse(each.type)) for each in handlers)


def always_run(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, without the branches of further conditions and what may be missing."""
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        if isinstance(now, (ast.If, ast.IfExp, ast.While)) and now is not node:
            stack.append(now.test)
        elif (now is node or not may_lack_it(now)) and not isinstance(now, _RUN_LATER):
            stack += children(now)


@lru_cache(maxsize=1024)
def _top_imports(path: Path | None) -> tuple[tuple[str, str], ...]:
    """The modules that a file of the project imports whatever holds, each with what it takes from it."""
    found = _TOP_IMPORT.findall(_text(path))
    numba = [("numba.cuda", "")] if "from numba import cuda" in _text(path) else []
    return (*numba, *((module or whole, names) for module, names, whole in found))


@lru_cache(maxsize=4)
def _text(path: Path | None) -> str:
    try:
        return "\n" + path.read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""
