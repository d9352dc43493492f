"""Functions and classes that only CUDA can run: they are named after FP8 or NVLink, raise without a library for CUDA,
or always call one, the project's kernels, or another such function.

stays:  def quantize_fp8(x): ...        class Mixer: def __init__(self): if not HAVE_MAMBA_SSM: raise ImportError
        def train(model): with te.fp8_autocast(): ...        def rotate(x): _kernel[grid](x)
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

from npukit.migrate.cuda_imports import FROM_CUDA, LIBRARIES, loads_cuda
from npukit.migrate.cuda_only import HAS_OTHERS, may_lack_it, own_launchers, project_kernels
from npukit.migrate.needed_libraries import holds, imported, is_of_library, lacks, stands_for_library
from npukit.source import PythonFile
from npukit.source.names import Names, children, file_of, inside

_NAMED = re.compile(
    r"(?:^|_)(?:mx|nv)?fp[48](?:_|$)|^(?:nvls|nixl|nvshmem)|_(?:nvls|nixl|nvshmem)(?:_|$)", re.IGNORECASE
)
_REFUSES = ("assert", "raise", "import")
_MAKES = ("__init__", "__new__", "forward")
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Part = _Function | ast.ClassDef
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOAD = re.compile(r"\w+ = (\w+)\(\)\.load\(\)$")
_BUILDS = ("load", "load_inline")
_ASKED = (ast.If, ast.IfExp, ast.While)


@lru_cache(maxsize=4)
def functions_for_cuda(file: PythonFile) -> tuple[ast.AST, ...]:
    """The functions, classes and methods of a file that only CUDA can run, and that say where they run."""
    imports = (each for each in file.names.imports if isinstance(each, ast.ImportFrom))
    torchs = (each for each in imports if (each.module or "").startswith("torch.cuda"))
    names = (alias.asname or alias.name for each in torchs for alias in each.names)
    said = re.compile("|".join(["(?i:cuda)", *(rf"\b{re.escape(name)}\b" for name in names)]))
    return tuple(each for each in _found(file, said) if said.search(file.source(each)))


def _found(file: PythonFile, said: re.Pattern[str]) -> Iterator[ast.AST]:
    parts = [each for each in file.tree.body if isinstance(each, _Part)]
    names = {*_libraries(file), *project_kernels(file), *_loaded(file)}
    names |= own_launchers(file) if "triton" in file.text else set()
    if not (names or _builds_any(file) or _speaks_of_libraries(file)):
        return
    names |= {each.name for each in parts if _refuses_here(each, file)}
    names |= _callers(parts, names, file)
    for part in parts:
        if part.name in names or _NAMED.search(part.name) or _leaves(part, file):
            yield part
        elif isinstance(part, ast.ClassDef):
            for each in (each for each in part.body if isinstance(each, _Part) and said.search(file.source(each))):
                if _NAMED.search(each.name) or (not isinstance(each, ast.ClassDef) and _needs(each, names, file)):
                    yield each
    for choice in file.tree.body:
        if isinstance(choice, ast.If) and _is_installed(choice.test, file.names):
            yield from (each for each in choice.body if isinstance(each, _Part))


def _needs(method: _Function, names: set[str], file: PythonFile) -> bool:
    return _refuses_here(method, file) or not names.isdisjoint(_called(method) if names else ())


def _callers(parts: list[_Part], names: set[str], file: PythonFile) -> set[str]:
    """The functions and classes that always call one of the names, or one that does."""
    first = [each.lineno for each in parts]
    found: set[str] = set()
    latest = names
    while latest:
        uses = (each.lineno for name in latest for each in file.by_name.get(name, ()) if isinstance(each, ast.Name))
        known, users = names | found, {bisect_right(first, line) - 1 for line in uses}
        some = (parts[each] for each in users if each >= 0)
        latest = {each.name for each in some if each.name not in known and not known.isdisjoint(_needed(each))}
        found |= latest
    return found


def _speaks_of_libraries(file: PythonFile) -> bool:
    """Whether a name that is read or defined, or a module that is imported, is of a library; to search the text takes
    far longer."""
    if "import_module(" in file.text:
        return True
    modules = (name for node in file.names.imports for name in imported(node))
    defined = (each.name for kind in _RUN_LATER for each in file.by_type.get(kind, ()) if isinstance(each, _Part))
    return any(map(is_of_library, (*file.names.read, *modules, *defined)))


@lru_cache(maxsize=4)
def _builds_any(file: PythonFile) -> bool:
    return "().load()" in file.text or "cpp_extension" in file.text


def _refuses_here(part: _Part, file: PythonFile) -> bool:
    text = file.source(part)
    if any(word in text for word in _REFUSES) and refuses(part, file.names):
        return True
    functions = [part] if not isinstance(part, ast.ClassDef) else _makes(part)
    return _builds_any(file) and any(
        _builds(each, file) or any(_loads(inner, file) for inner in each.body) for each in functions
    )


def _leaves(part: _Part, file: PythonFile) -> bool:
    """module = _optional(); if module is None: return, before anything about devices"""
    for each in part.body if not isinstance(part, ast.ClassDef) else ():
        if "cuda" in file.source(each).lower():
            return False
        if isinstance(each, ast.If) and isinstance(each.body[-1], ast.Return) and not each.orelse:
            asked = each.test.left if isinstance(each.test, ast.Compare) else None
            if isinstance(asked, ast.Name) and lacks(each.test, file.names) and stands_for_library(asked, file.names):
                return True
    return False


def _makes(part: ast.ClassDef) -> list[_Function]:
    """What every object of a class runs."""
    return [each for each in part.body if isinstance(each, _Function) and each.name in _MAKES]


def _needed(part: _Part) -> Iterator[str]:
    """What a function calls whatever holds; of a class, also what it inherits from."""
    if isinstance(part, ast.ClassDef):
        yield from (_root(each) for each in part.bases)
    for each in [part] if not isinstance(part, ast.ClassDef) else _makes(part):
        yield from _called(each)


@lru_cache(maxsize=256)
def refuses(part: _Part, names: Names) -> bool:
    """Whether a function, or the making of an object of a class, raises without a library for CUDA."""
    if isinstance(part, ast.ClassDef):
        return any(refuses(each, names) for each in _makes(part))
    return any(_raises(each, names) for each in _certain(part.body))


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements before one that may return, but for `if p is None: return`, where there is nothing to do."""
    for each in body:
        may_return = isinstance(each, ast.If) and any(isinstance(inner, ast.Return) for inner in inside(each))
        if may_return and not _has_nothing_to_do(each):  # type: ignore[arg-type]
            return
        yield each


def _has_nothing_to_do(choice: ast.If) -> bool:
    first = choice.body[0]
    returns = isinstance(first, ast.Return) and (first.value is None or isinstance(first.value, ast.Constant))
    return returns and not choice.orelse and not HAS_OTHERS.search(ast.unparse(choice.test))


def _raises(statement: ast.stmt, names: Names) -> bool:
    """if not HAVE_TE: raise ...; assert HAVE_TE; try: import deep_ep; except ImportError as e: raise ... from e"""
    if isinstance(statement, ast.Assert):
        return _is_installed(statement.test, names)
    if isinstance(statement, ast.If):
        test = statement.test
        return isinstance(statement.body[-1], ast.Raise) and _asks_what_there_is(test, names) and lacks(test, names)
    if isinstance(statement, ast.Try) and not all(isinstance(each.body[-1], ast.Raise) for each in statement.handlers):
        return False
    tried = statement.body if isinstance(statement, ast.Try) else [statement]
    modules = [name for each in tried if isinstance(each, (ast.Import, ast.ImportFrom)) for name in imported(each)]
    return any(LIBRARIES.match(each) for each in modules if each != "triton")


def _is_installed(condition: ast.expr, names: Names) -> bool:
    return _asks_what_there_is(condition, names) and holds(condition, names)


def _asks_what_there_is(condition: ast.expr, names: Names) -> bool:
    """HAVE_TE, te is None, is_te_min_version("2.0"): not args.fp8 or isinstance(x, Y), which ask for what is wanted"""
    for each in inside(condition):
        if isinstance(each, ast.Name) and names.lookup(each)[0] is not names.tree:
            return False
        if isinstance(each, ast.Compare) and not isinstance(each.ops[0], (ast.Is, ast.IsNot)):
            return False
        if isinstance(each, ast.Call) and not all(isinstance(argument, ast.Constant) for argument in each.args):
            return False
        if isinstance(each, ast.Attribute):
            return False
    return True


def _libraries(file: PythonFile) -> Iterator[str]:
    """te, of try: import transformer_engine as te; except ImportError: te = None"""
    for node in file.names.imports:
        for alias in node.names if file.function(node) is file.tree else ():
            name = alias.asname or alias.name.partition(".")[0]
            if name != "triton" and _is_library(node, alias, file):
                others = (each for each in file.names.bindings_in(file.tree, name) if not LIBRARIES.match(each.target))
                if all(isinstance(each.value, ast.Constant) for each in others):
                    yield name


def _is_library(node: ast.Import | ast.ImportFrom, alias: ast.alias, file: PythonFile) -> bool:
    """import flash_attn; import deform_conv_cuda, which the project's build makes"""
    if isinstance(node, ast.ImportFrom):
        return LIBRARIES.match(node.module or "") is not None
    is_compiled = alias.name.endswith("_cuda") and file_of(alias.name, file.path, file.names.root) is None
    return is_compiled or LIBRARIES.match(alias.name) is not None


def _loaded(file: PythonFile) -> Iterator[str]:
    """gptq_cuda, of try: gptq_cuda = GPTQBuilder().load()"""
    tried = (each for part in file.tree.body if isinstance(part, ast.Try) for each in part.body)
    for each in tried if "().load()" in file.text else ():
        name = getattr(each.targets[0], "id", "") if isinstance(each, ast.Assign) else ""
        if name and (_is_load(each, file) or (name.endswith("_cuda") and ".load()" in file.source(each))):
            yield name


def _loads(statement: ast.stmt, file: PythonFile) -> bool:
    """if kernels is None: kernels = NormLoader().load()"""
    if isinstance(statement, ast.If) and file.source(statement.test).endswith(" is None"):
        return any(_is_load(each, file) for each in statement.body)
    return _is_load(statement, file)


def _is_load(statement: ast.stmt, file: PythonFile) -> bool:
    loader = _LOAD.match(file.source(statement)) if isinstance(statement, ast.Assign) else None
    return loader is not None and loads_cuda(loader[1], file.text, file.path, file.names.root)


def _builds(part: _Function, file: PythonFile) -> bool:
    """load_inline(cpp_sources=[...], with_cuda=True)"""
    calls = (each for each in inside(part) if isinstance(each, ast.Call)) if "cpp_extension" in file.text else ()
    found = (each for each in calls if getattr(each.func, "attr", getattr(each.func, "id", "")) in _BUILDS)
    return any(FROM_CUDA.search(file.source(each)) for each in found)


def _called(function: _Function) -> Iterator[str]:
    """The names that a function calls whatever holds: te, of te.fp8_autocast(); kernel, of kernel[grid](x)"""
    stack: list[ast.AST] = list(_certain(function.body))
    while stack:
        now = stack.pop()
        if isinstance(now, _ASKED):
            stack.append(now.test)
        elif isinstance(now, ast.BoolOp):
            stack.append(now.values[0])
        elif not may_lack_it(now) and not isinstance(now, _RUN_LATER):
            if isinstance(now, ast.Call) and (name := _root(now.func)):
                yield name
            stack += children(now)


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
