"""Files, functions, classes and tests that only CUDA can run, each with what shows it.

stays:  from flash_attn import flash_attn_func     def quantize_fp8(x): ...        def rotate(x): _kernel[grid](x)
        class Mixer: def __init__(self): if not HAVE_MAMBA_SSM: raise ImportError
        @pytest.mark.skipif(not HAVE_TE, reason="...")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from npukit.facts.libraries import imported, named, needs_cuda
from npukit.migrate.evidence import Evidence, leaves, of_call
from npukit.migrate.kernels import (
    Definition,
    compiled,
    extension_at_top,
    loads_extension,
    may_lack_it,
    needed,
    needed_at_top,
    only_asks,
    strong_names,
)
from npukit.migrate.presence import imported_in, missing, named_for_cuda, present
from npukit.source import PythonFile
from npukit.source.names import children, definition_of, file_of, inside

_FROM_CUDA = re.compile(r"\.cu[\"']|\bcuda_sources\b|\bwith_cuda=True")
_WITHOUT = re.compile(r"without|fallback|(?:^|_)(?:no|not|disabled?|missing|unavailable)(?:_|$)")
_NEEDED = re.compile(
    r"requires?\b|needs?\b|only\b|not (?:installed|available|supported)|unavailable|without|lacks", re.IGNORECASE
)
_REQUIRES = re.compile(r"_?(?:requires?|needs?|skip_(?:if_no|unless))_")
_CARDS = re.compile(r"(?:^|_)(?:cuda|gpus?|nvidia)(?:_|$)")
_DRIVER = re.compile(r"nvidia-smi|\bnvml[A-Z]")
_DEVICE_API = {"is_available", "set_device", "current_device", "device_count", "synchronize", "empty_cache", "Stream"}
_SKIPS = ("skipif", "skipIf", "skipUnless")
_SETUPS = ("setUp", "setUpClass", "setup_method", "setup_class", "setup_module")
_MAKES = ("__init__", "__new__", "forward", *_SETUPS)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_GRAPH = re.compile(r"cuda_?graph(?!able)(?!s?_?(?:enabled|scope|impl|config|mode|flag))", re.IGNORECASE)
_CAPTURES = ("CUDAGraph", "make_graphed_callables", "graph_pool_handle")


@lru_cache(maxsize=8)
def of_file(file: PythonFile) -> Evidence | None:
    """Why a file as a whole is for CUDA only: its name or folder says so, or it cannot be imported elsewhere."""
    root, path = file.names.root, file.path
    inside_root = path.relative_to(root) if root and path.is_relative_to(root) else Path(path.name)
    name = inside_root.with_suffix("").as_posix()
    parts = (*inside_root.with_suffix("").parts, name)
    library = next(filter(None, map(named_for_cuda, parts)), None)
    if library and library.verdict != "adapter" and not _WITHOUT.search(name):
        return Evidence("name", library.name, file.place(file.tree))
    for node in file.tree.body:
        found = refuses_without(node, file, asks_any=_is_of_tests(file)) or _imported(node, file)
        if found:
            return Evidence("library", found, file.place(node))
    if launched := _launched(file) or _compiled_at_import(file):
        return Evidence("kernel", "Triton", file.place(launched))
    return None


def _imported(node: ast.stmt, file: PythonFile) -> str:
    """The library for CUDA without which an import at the top fails; of a test, also what is imported on the way."""
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark":
        return marks([node.value], file)
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return ""
    names = ", ".join(alias.name for alias in node.names) if isinstance(node, ast.ImportFrom) else ""
    module = (getattr(node, "module", None) or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
    if only_asks(module, names, file.text):
        return ""
    where = file_of("." * getattr(node, "level", 0) + module, file.path, file.names.root)
    parts = module.split(".")[1:] if where is None else []
    library = needed(node) or next(filter(None, map(needs_cuda, parts)), None)  # ours.triton, which is made elsewhere
    if library is None and where is not None and (_is_of_tests(file) or re.match("bench", file.path.stem)):
        library = needed_at_top(where)
        if library is None or library.name == "Triton":  # whose kernels are looked for one by one
            return extension_at_top(where, file.names.root)
    return library.name if library else ""


def _launched(file: PythonFile) -> ast.AST | None:
    """A kernel of another file, which cannot be imported without Triton, that is launched here: kernel[grid](x)"""
    own = {each.name for each in file.tree.body if isinstance(each, Definition)}
    of_kernels = {name for name, library in strong_names(file).items() if library in ("Triton", "TileLang")}
    for name in of_kernels if "](" in file.text else ():
        for use in file.by_name.get(name, ()):
            taken = file.parent(use)
            is_launch = isinstance(taken, ast.Subscript) and taken.value is use
            if is_launch and isinstance(file.parent(taken), ast.Call) and name not in own:  # type: ignore[arg-type]
                return use
    return None


def _compiled_at_import(file: PythonFile) -> ast.AST | None:
    """A kernel at the top, whose @triton.jit runs with the import: `if HAVE_TRITON: import triton` does not help it."""
    kernels = compiled(file.tree.body) if "triton" in file.text or "tilelang" in file.text else ()
    kernel = next((each for each in file.tree.body if getattr(each, "name", "") in kernels), None)
    others = (each for name in ("triton", "tilelang") for each in file.names.bindings_in(file.tree, name))
    is_always = all(each.kind == "import" for each in others)
    return kernel if is_always else None


@lru_cache(maxsize=4)
def definitions(file: PythonFile) -> dict[ast.AST, Evidence]:
    """The functions, classes, methods and tests of a file that only CUDA can run."""
    names = dict(strong_names(file))
    if not names and not _speaks_of_libraries(file):
        return {}
    parts = [each for each in file.tree.body if isinstance(each, Definition)]
    found: dict[ast.AST, Evidence] = {}
    while True:
        before = len(found)
        for part in parts:
            for each in (part, *(part.body if isinstance(part, ast.ClassDef) else ())):
                if not isinstance(each, Definition) or each in found or part in found:
                    continue
                if evidence := _needs(each, names, file):
                    found[each] = evidence
                    if evidence.kind != "name":
                        own = each is part or _is_fixture(each, file)
                        names.setdefault(each.name if own else f"self.{each.name}", evidence.library)
            tests = [each for each in part.body if _is_test(each)] if isinstance(part, ast.ClassDef) else []
            if tests and part not in found and all(each in found for each in tests):
                found[part] = found[tests[0]]
        if len(found) == before:
            return found


def _speaks_of_libraries(file: PythonFile) -> bool:
    """Whether a name that is read or defined is of a library for CUDA: to look at all definitions takes long."""
    defined = (each.name for kind in _RUN_LATER[:3] for each in file.by_type.get(kind, ()))  # type: ignore[attr-defined]
    return (
        any(map(named_for_cuda, (*file.names.read, *defined)))
        or any(map(needed, file.names.imports))
        or (_is_of_tests(file) or "nvidia" in file.text or "nvml" in file.text or "cuda" in file.text.lower())
    )


def _is_of_tests(file: PythonFile) -> bool:
    return file.path.name.startswith("test") or file.path.stem.endswith("_test")


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, _Function) and node.name.startswith("test")


def _is_fixture(part: Definition, file: PythonFile) -> bool:
    return any("fixture" in file.source(each) for each in part.decorator_list)


def _needs(part: Definition, names: dict[str, str], file: PythonFile) -> Evidence | None:
    """Why a function, class or test is for CUDA only: by its name, its marks, or what it does whatever holds."""
    place = file.place(part)
    library = named_for_cuda(part.name)
    if library and (not library.imports or _is_test(part)) and not _WITHOUT.search(part.name):
        return Evidence("name", library.name, place)
    if marked := marks(part.decorator_list, file):
        return Evidence("library", marked, place)
    if isinstance(part, ast.ClassDef):
        return _class_needs(part, names, file)
    if part.name == "cuda" and _moves_by_itself(part, file):
        return Evidence("name", "cuda() of its own class", place)
    if taken := next((names[each.arg] for each in part.args.args if each.arg in names), ""):
        return Evidence("library", taken, place)
    if refused := _refuses(part, file):
        return refused
    for node, name in _called(part, passed=_is_of_tests(file)):
        is_kernel = name.endswith("_cuda") and isinstance(getattr(node, "func", None), ast.Name)
        if name in names or (is_kernel and of_call(node, file)):
            return Evidence("kernel", names.get(name, name), file.place(node))
    return _asks_driver(part, file)


@lru_cache(maxsize=512)
def _refuses(part: _Function, file: PythonFile) -> Evidence | None:
    for statement in _certain(part.body):
        if refused := refuses_without(statement, file, asks_any=_is_of_tests(file)):
            return Evidence("library", refused, file.place(statement))
    extension = loads_extension(part, file)
    return Evidence("kernel", extension, file.place(part)) if extension else None


def _class_needs(part: ast.ClassDef, names: dict[str, str], file: PythonFile) -> Evidence | None:
    if base := next((names[each] for each in map(_root, part.bases) if each in names), ""):
        return Evidence("library", base, file.place(part))
    for module in (file.resolve(each) or "" for each in part.bases):
        if (library := imported(module)) and library.own_devices:  # it is told the library's device
            return Evidence("library", library.name, file.place(part))
    for each in part.body:
        is_mark = isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "pytestmark"
        if is_mark and (marked := marks([each.value], file)):  # type: ignore[attr-defined]
            return Evidence("library", marked, file.place(each))
        if isinstance(each, _Function) and each.name in _MAKES and (found := _needs(each, names, file)):
            return found
    methods = {each.name for each in part.body if isinstance(each, _Function)}
    asks = any(re.fullmatch(r"is_(?:\w+_)?(?:available|compatible|supported)", name) for name in methods)
    is_named = re.search(r"cuda|nvidia|triton", part.name, re.IGNORECASE)
    is_layer = is_named and (asks or len(methods & _DEVICE_API) > 2 or _is_one_of_several(part, file))
    return Evidence("layer", part.name, file.place(part)) if is_layer else None


def _is_one_of_several(part: ast.ClassDef, file: PythonFile) -> bool:
    """class CudaChecker(BaseChecker): what the project has for CUDA, beside the same for other devices"""
    kind = re.sub(r"^(?:cuda|nvidia)_?", "", part.name, flags=re.IGNORECASE)
    bases = (each for each in part.bases if re.sub("^(?:Base|Abstract)", "", getattr(each, "id", "")) == kind)
    return any(definition_of(each, file.names, "class") for each in bases)


def _moves_by_itself(method: _Function, file: PythonFile) -> bool:
    """def cuda(self): of a class that has an npu() as well, of a kind of tensor, or where super() moves to CUDA"""
    owner = file.parent(method)
    if not isinstance(owner, ast.ClassDef):
        return False
    has_npu = any(isinstance(each, _Function) and each.name == "npu" for each in owner.body)
    is_tensor = any(file.source(base).endswith("Tensor") for base in owner.bases)
    return has_npu or is_tensor or "super().cuda(" in file.source(method)


def _asks_driver(part: _Function, file: PythonFile) -> Evidence | None:
    """def get_gpu_memory(): ... nvidia-smi ...: what it does beside it is for the same cards"""
    body = part.body[1:] if ast.get_docstring(part) is not None else part.body
    asks = _CARDS.search(part.name) and any(_DRIVER.search(file.source(each)) for each in body)
    return Evidence("library", "NVML", file.place(part)) if asks else None


def refuses_without(statement: ast.stmt, file: PythonFile, asks_any: bool = False) -> str:
    """The library for CUDA without which nothing behind a statement runs: if not HAVE_TE: raise ...; assert HAVE_TE;
    pytest.importorskip("triton"); try: import deep_ep; except ImportError as e: raise ... from e"""
    if isinstance(statement, ast.Assert):
        return present(statement.test, file.names) if asks_what_there_is(statement.test, file) else ""
    if isinstance(statement, ast.If):
        if not leaves(statement.body[-1]) or not (asks_any or asks_what_there_is(statement.test, file)):
            return ""
        if isinstance(statement.body[-1], ast.Return) and not asks_any:
            return ""
        asks_more = isinstance(statement.test, ast.BoolOp) and isinstance(statement.test.op, ast.And)
        said = said_needed(statement.body[-1]) if asks_any and not asks_more else ""
        return missing(statement.test, file.names) or said
    if isinstance(statement, ast.Try):
        return imported_in(statement) if all(leaves(each.body[-1]) for each in statement.handlers) else ""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        library = needed(statement)
        return library.name if library and library.name != "Triton" else ""
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign, ast.Return)) else None
    if "cpp_extension" in file.text and isinstance(value, ast.Call):
        builds = getattr(value.func, "attr", getattr(value.func, "id", "")) in ("load", "load_inline")
        if builds and _FROM_CUDA.search(file.source(value)):
            return "a kernel that nvcc compiles"
    if isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "importorskip" and value.args:
        module = str(getattr(value.args[0], "value", ""))
        library = imported(module) or named(module)
        return library.name if library and library.is_missing else ""
    return ""


def asks_what_there_is(condition: ast.expr, file: PythonFile) -> bool:
    """HAVE_TE, te is None, is_te_min_version("2.0"): not args.fp8 or isinstance(x, Y), which ask for what is wanted"""
    for each in inside(condition):
        if isinstance(each, ast.Name) and file.names.lookup(each)[0] not in (None, file.tree):
            return False
        if isinstance(each, ast.Compare) and not isinstance(each.ops[0], (ast.Is, ast.IsNot)):
            return False
        if isinstance(each, ast.Call) and not all(isinstance(argument, ast.Constant) for argument in each.args):
            return False
        if isinstance(each, ast.Attribute):
            return False
    return True


def said_needed(part: ast.AST) -> str:
    """The library for CUDA that a text says is needed: pytest.skip("needs Transformer Engine")"""
    for node in inside(part):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if text and _NEEDED.search(text) and (library := named(text)) and library.is_missing:
            return library.name
    return ""


def marks(decorators: Sequence[ast.expr], file: PythonFile, depth: int = 2) -> str:
    """The library for CUDA without which a test is skipped: @pytest.mark.skipif(not HAVE_TE, ...), @requires_te"""
    for mark in decorators:
        if isinstance(mark, (ast.List, ast.Tuple)) and (found := marks(mark.elts, file, depth)):
            return found
        if isinstance(mark, ast.Name) and depth:
            values = [each.value for each in file.names.lookup(mark)[1] if each.value is not None]
            if found := marks(values, file, depth - 1):
                return found
        name = getattr(mark, "id", getattr(mark, "attr", ""))
        if _REQUIRES.match(name) and (library := named_for_cuda(name)):
            return library.name
        if isinstance(mark, ast.Call) and (kind := getattr(mark.func, "attr", "")) in _SKIPS:
            asks = present if kind == "skipUnless" else missing
            given = [*mark.args[1:], *(each.value for each in mark.keywords)]
            found = next(filter(None, (asks(each, file.names) for each in mark.args[:1])), "")
            if found := found or next(filter(None, map(said_needed, given)), ""):
                return found
    return ""


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements up to one that may return, but for `if p is None: return`, where there is nothing to do."""
    for each in body:
        yield each
        may_return = isinstance(each, ast.If) and any(isinstance(inner, ast.Return) for inner in inside(each))
        if may_return and not _has_nothing_to_do(each):  # type: ignore[arg-type]
            return


def _has_nothing_to_do(choice: ast.If) -> bool:
    begins = choice.body[0]
    returns = isinstance(begins, ast.Return) and (begins.value is None or isinstance(begins.value, ast.Constant))
    return (
        returns and not choice.orelse and not re.search(r"cuda|device|avail|have|has_|use_", ast.unparse(choice.test))
    )


@lru_cache(maxsize=512)
def _called(function: _Function, passed: bool) -> list[tuple[ast.Call, str]]:
    """The names that a function calls whatever holds: te, of te.fp8_autocast(); kernel, of kernel[grid](x); where
    `passed`, also functions that it passes on: spawn(run, 4)"""
    found: list[tuple[ast.Call, str]] = []
    stack: list[ast.AST] = list(_certain(function.body))
    while stack:
        now = stack.pop()
        kind = type(now)
        if kind in (ast.Name, ast.Constant):
            continue
        if kind in (ast.If, ast.IfExp, ast.While):
            stack.append(now.test)  # type: ignore[attr-defined]
        elif kind is ast.BoolOp:
            stack.append(now.values[0])  # type: ignore[attr-defined]
        elif kind not in _RUN_LATER and not (kind is ast.Try and may_lack_it(now)):
            if isinstance(now, ast.Call):
                is_own = isinstance(now.func, ast.Attribute) and getattr(now.func.value, "id", "") == "self"
                found.append((now, f"self.{now.func.attr}" if is_own else _root(now.func)))  # type: ignore[attr-defined]
                found += [(now, each.id) for each in now.args if passed and isinstance(each, ast.Name)]
            stack += children(now)
    return found


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def graph_around(node: ast.AST, file: PythonFile) -> ast.AST | None:
    """The outermost function, class or file around a node that captures or replays CUDA graphs, which have another name
    on an NPU; streams, events and tensors that are captured stay with the graph.

    >>> graph_around(stream, file)  # class CUDAGraphRunner: def capture(self): s = torch.cuda.Stream()
    <ast.ClassDef object>
    """
    if not _mentions_graphs(file):
        return None
    if _GRAPH.search(file.path.stem):
        return file.tree
    around = [each for each in (node, *file.ancestors(node)) if isinstance(each, Definition)]
    return next((each for each in reversed(around) if each in graph_parts(file)), None)


@lru_cache(maxsize=8)
def _mentions_graphs(file: PythonFile) -> bool:
    named_so = _GRAPH.search(file.path.stem)
    return bool(named_so or ("raph" in file.text and (_GRAPH.search(file.text) or graph_parts(file))))


@lru_cache(maxsize=8)
def graph_parts(file: PythonFile) -> frozenset[ast.AST]:
    """The functions and classes of a file that are named after CUDA graphs, or capture one."""
    named_so = (each for kind in _RUN_LATER[:3] for each in file.by_type.get(kind, ()) if _GRAPH.search(each.name))  # type: ignore[attr-defined]
    captures = [node for name in _CAPTURES for node in file.by_name.get(name, ())]
    made = (node for node in captures if getattr(getattr(file.parent(node), "func", None), "id", "") != "hasattr")
    functions = (file.function(node) for node in made if (file.resolve(node) or "").startswith("torch.cuda."))
    return frozenset([*named_so, *(each for each in functions if isinstance(each, Definition))])
