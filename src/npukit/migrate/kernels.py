"""Recognise CUDA kernels: compiled by Triton, built from CUDA sources by the project, or imported from a library.

@triton.jit                          from . import scan_cuda                  from flash_attn import flash_attn_func
def _scale_kernel(x): ...            load(sources=["scan.cu"])                import cupy as cp
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from npukit.facts import libraries
from npukit.source.cache import per_project
from npukit.source.modules import file_of, text_of
from npukit.source.nodes import children

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom
_TOP_IMPORT = re.compile(r"\n(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*|[^\n#]*)|import[ \t]+([\w.]+))")
_COMPILED = re.compile(r"\n[ \t]*@(?:triton|tilelang)\.(?!testing\b)")
_ASKS = re.compile(r"triton|cuda|device|backend|impl|kernel|fused|avail|have|has_|use_|is_", re.IGNORECASE)
_ONLY_ASKED = re.compile(r"\W*(?:(?:HAVE|HAS|IS|check|is|has)_\w+|testing)\W*")
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
_MISSING = re.compile(r"ImportError|\bException|NotFound")
_BUILT_NAME = re.compile(r"\w+_cuda|\w*_ext")
_EXTENSION = re.compile(rf"(?:{_BUILT_NAME.pattern}|_[a-z]\w+)")
_NAME = re.compile(r"(?:^|,)[(\s]*(\w+)")  # one of the imported names
_BUILT = re.compile(r"\.cuh?[\"']|\bCUDAExtension\b|\bcuda_sources\b|\bwith_cuda=True")  # a build from CUDA sources
_BUILT_NAMED = re.compile(r"\bCUDAExtension\(\s*(?:name\s*=\s*)?[\"']([\w.]+)[\"']")
_LOADED = re.compile(r"\n\w+ = (?:[\w.]+\.)?load(?:_inline)?\(")
_BUILDERS = ("setup.py", "build.py", "backend.py")


def imported_modules(node: Import) -> list[str]:
    """Return the modules that a statement may import. `from numba import cuda` may import numba and numba.cuda.

    >>> imported_modules(ast.parse("from numba import cuda").body[0])
    ['numba', 'numba.cuda']
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    head = "." * node.level + (node.module or "")
    return [head, *(full_name(head, alias.name) for alias in node.names)]


def full_name(module: str, name: str) -> str:
    """Return the full name of what is imported from a module, such as ".ops" for `from . import ops`."""
    return module + name if module.endswith(".") else f"{module}.{name}"


def library_needed_by(node: Import) -> libraries.Library | None:
    """Return the CUDA-only library that an import statement needs."""
    candidates = (libraries.needs_cuda(module) for module in imported_modules(node))
    return next(filter(None, candidates), None)


def imported_extension(module: str, name: str, path: Path, root: Path | None) -> str:
    """Return the compiled extension that `from MODULE import NAME` or `import MODULE` brings, or "".

    >>> imported_extension("ours.ops", "ops_cuda", Path("project/train.py"), Path("project"))
    'ours.ops.ops_cuda'
    """
    if is_extension(module, path, root):
        return module.lstrip(".")
    beside = not module.strip(".")  # from . import ops_cuda
    package = file_of(module, path, root) if _BUILT_NAME.fullmatch(name) and not beside else None
    may_be = beside or (package is not None and package.name == "__init__.py" and name not in text_of(package))
    whole = full_name(module, name)
    return whole.lstrip(".") if name and may_be and is_extension(whole, path, root) else ""


@per_project(maxsize=4096)
def is_extension(module: str, path: Path, root: Path | None) -> bool:
    """Return whether a module is what the project's build makes from CUDA sources.

    >>> is_extension("ops_cuda", Path("project/ops.py"), Path("project"))
    True
    """
    name = module.rpartition(".")[2]
    is_built = name in _built_names(path.parent, root)
    if not (is_built or _EXTENSION.fullmatch(name)) or file_of(module, path, root) is not None:
        return False
    if is_built:
        return True
    if name.endswith("_cuda") or name == "_ext":
        return name not in text_of(path.with_name("__init__.py")) if module == f".{name}" else True
    return any(re.search(rf"[\"'.]{name}[\"']", _builders(folder)) for folder in _folders(path.parent, root))


@per_project(maxsize=1024)
def _folders(folder: Path, root: Path | None) -> tuple[Path, ...]:
    """Return a folder of the project and those around it."""
    return tuple(outer for outer in (folder, *folder.parents) if root and outer.is_relative_to(root))


@per_project(maxsize=1024)
def _builders(folder: Path) -> str:
    """Return the text of those build files in a folder that build extensions from CUDA sources."""
    texts = (text_of(folder / name) for name in _BUILDERS)
    return "\n".join(text for text in texts if _BUILT.search(text))


@per_project(maxsize=1024)
def _built_names(folder: Path, root: Path | None) -> frozenset[str]:
    """Return the modules that the build files around a folder make: `window` for CUDAExtension("ops.window", ...)"""
    modules = (module for outer in _folders(folder, root) for module in _BUILT_NAMED.findall(_builders(outer)))
    return frozenset(module.rpartition(".")[2] for module in modules)


@per_project(maxsize=4096)
def needed_by_imports(path: Path | None, root: Path | None) -> str:
    """Return what a file of the project cannot be imported without and only CUDA has, or "".

    This is a library, an extension that the project builds, or a kernel that is compiled during the import.
    """
    for module, names in top_imports(path):
        library = libraries.needs_cuda(module)
        if library and not (names and only_checks_presence(module, names, "")):
            return library.name
    for module, names in top_imports(path) if path else ():
        for name in _NAME.findall(names) or [""]:
            if path and (built := imported_extension(module, name, path, root)):
                return built
    text = text_of(path) if path else ""
    builds = "cpp_extension" in text and _LOADED.search(text) and _BUILT.search(text)
    return "a kernel that nvcc compiles" if builds else ""


@per_project(maxsize=8192)
def may_need_cuda(path: Path, root: Path | None, hops: int) -> bool:
    """Return whether a file, or one that it imports, mentions anything that only CUDA has. Others need no parsing."""
    if _names_kernels(path, root):
        return True
    others = (file_of(module, path, root) for module, _ in top_imports(path)) if hops else ()
    return any(may_need_cuda(other, root, hops - 1) for other in others if other)


@per_project(maxsize=8192)
def _names_kernels(path: Path, root: Path | None) -> bool:
    text, builds = text_of(path), any(map(_builders, _folders(path.parent, root)))
    patterns = _kernels_named(builds, _built_names(path.parent, root))
    return "CDLL" in text or "cpp_extension" in text or any(pattern.search(text) for pattern in patterns)


@cache
def _kernels_named(builds: bool, built: frozenset[str]) -> list[re.Pattern[str]]:
    """Return patterns that find imports of CUDA libraries and of the project's extensions."""
    imports = (name for library in libraries.libraries() if library.needs_cuda for name in library.imports)
    names = "|".join([r"[\w.]+_cuda|[\w.]*_ext", *([r"_\w+"] if builds else []), *map(re.escape, (*built, *imports))])
    return [re.compile(rf"{word}(?<!\w{word})[ \t]+(?:{names})\b") for word in ("import", "from")]


def only_checks_presence(module: str, names: str, text: str) -> bool:
    """Return whether an import only asks what is there, such as `from triton_ops import HAS_TRITON`."""
    if names:
        return all(_ONLY_ASKED.fullmatch(name) for name in re.split(r",\s*(?=\w)", names.partition(" as ")[0]))
    return module == "triton" and not re.search(r"\btriton\.(?!testing\b)|\btl\.", text)


def top_statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements at the top of a file, including those in a top-level `if` or `try`."""
    inner = (statement.body for statement in body if isinstance(statement, (ast.If, ast.Try)))
    return [*body, *(statement for statements in inner for statement in statements)]


def compiled_kernels(body: list[ast.stmt]) -> frozenset[str]:
    """Return the names of the functions among some statements that are kernels: @triton.jit def scale(x): ..."""
    functions = (statement for statement in body if isinstance(statement, ast.FunctionDef))
    return frozenset(
        function.name
        for function in functions
        if any(_COMPILED.match(f"\n@{ast.unparse(mark)}") for mark in function.decorator_list)
    )


def names_always_using(names: frozenset[str], body: list[ast.stmt]) -> frozenset[str]:
    """Return the given names together with the functions and classes of a file that use one of them on every device."""
    if not names:
        return names
    runs = {statement.name: set(_used(statement)) for statement in body if isinstance(statement, Definition)}
    while more := {name for name, used in runs.items() if name not in names and not used.isdisjoint(names)}:
        names |= more
    return names


def _used(definition: Definition) -> Iterator[str]:
    """Yield the names that a definition uses unconditionally, for a class those that its `forward` uses."""
    stack: list[ast.AST] = list(definition.body)
    if isinstance(definition, ast.ClassDef):
        stack = [part for method in definition.body if getattr(method, "name", "") == "forward" for part in method.body]  # type: ignore[attr-defined]
    while stack:
        now = stack.pop()
        if isinstance(now, ast.Name):
            yield now.id
        elif isinstance(now, (ast.If, ast.IfExp, ast.While)) and _ASKS.search(ast.unparse(now.test)):
            stack.append(now.test)
        elif not tolerates_missing_import(now) and not isinstance(now, _RUN_LATER):
            stack += children(now)


def tolerates_missing_import(node: ast.AST) -> bool:
    """Return whether a `try` ignores the failure, as code does for optional packages."""
    handlers = node.handlers if isinstance(node, ast.Try) else ()
    return any(handler.type is None or _MISSING.search(ast.unparse(handler.type)) for handler in handlers)


def unconditional_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and everything in it that runs unconditionally, without nested branches and optional imports."""
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        if isinstance(now, (ast.If, ast.IfExp, ast.While)) and now is not node:
            stack.append(now.test)
        elif (now is node or not tolerates_missing_import(now)) and not isinstance(now, _RUN_LATER):
            stack += children(now)


@per_project(maxsize=1024)
def top_imports(path: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the modules that a file of the project imports unconditionally, each with the names taken from it."""
    text = text_of(path) if path else ""
    imports = _TOP_IMPORT.findall(f"\n{text}")
    numba = [("numba.cuda", "")] if "from numba import cuda" in text else []
    return (*numba, *((module or whole, names) for module, names, whole in imports))
