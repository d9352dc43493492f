"""Find the functions, classes and tests that can run on CUDA only, each with the evidence for it.

def quantize_fp8(x): ...
def rotate(x): _kernel[grid](x)
class Mixer:
    def __init__(self):
        if not HAVE_MAMBA_SSM: raise ImportError
@pytest.mark.skipif(not HAVE_TE, reason="...")
def test_layer(): ...
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

from npukit.facts.libraries import called, imported, needs_cuda
from npukit.migrate.evidence import Evidence, evidence_in_call
from npukit.migrate.kernels import (
    Definition,
    Import,
    compiled_kernels,
    full_name,
    imported_extension,
    is_extension,
    library_needed_by,
    may_need_cuda,
    names_always_using,
    needed_by_imports,
    tolerates_missing_import,
    top_statements,
)
from npukit.migrate.presence import cuda_library_named, library_required_by, library_required_by_marks
from npukit.source import PythonFile, Unreadable, per_file, read
from npukit.source.cache import per_project
from npukit.source.definitions import definition_of, origin_of
from npukit.source.nodes import children, inside, statements

SAYS_WITHOUT = re.compile(r"without|fallback|(?:^|_)(?:no|not|disabled?|missing|unavailable)(?:_|$)")
_CARDS = re.compile(r"(?:^|_)(?:cuda|gpus?|nvidia)(?:_|$)")
_DRIVER = re.compile(r"nvidia-smi|\bnvml[A-Z]")
_SETUPS = ("setUp", "setUpClass", "setup_method", "setup_class", "setup_module")
_MAKES = ("__init__", "__new__", "forward", *_SETUPS)
_LOADS = (ast.If, ast.Try, ast.Import, ast.ImportFrom, ast.Assign, ast.Return, ast.Global, ast.Expr)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
# How many imports evidence is followed through. What is built on a kernel's wrapper is an application, which moves to
# NPUs with another wrapper; a test of it needs the kernel.
_HOPS, _HOPS_OF_TESTS = 1, 2
_TEST = re.compile(r"(?:test|bench|conftest)|\w*_(?:test|bench|benchmark)$")


def cuda_only_names(file: PythonFile) -> dict[str, str]:
    """Return the names at the top of a file that only CUDA machines have, each with the library that it comes from.

    They are imported from such a library or from a file of the project that needs one, or are the file's own kernels.
    """
    return _cuda_only_names(file, _HOPS_OF_TESTS if is_test_or_benchmark(file) else _HOPS)


@per_file
def _cuda_only_names(file: PythonFile, hops: int) -> dict[str, str]:
    library_of: dict[str, str] = {}
    for node in file.names.imports:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            for inner, library in needed_by_import(node, alias, file, hops).items():
                if _is_always(name, node, file):
                    library_of[name if inner == "*" else f"{name}.{inner}"] = library
    return library_of | dict.fromkeys(_kernels_of(file), "Triton")


def _kernels_of(file: PythonFile) -> frozenset[str]:
    has_kernels = file.has("triton") or file.has("tilelang")
    return compiled_kernels(top_statements(file.tree.body)) if has_kernels else frozenset[str]()


def needed_by_import(node: Import, alias: ast.alias, file: PythonFile, hops: int = _HOPS) -> dict[str, str]:
    """Return which of the imported names only CUDA has: "*" for the whole import, else the names within a module.

    >>> needed_by_import(node, node.names[0], file)  # from . import scan_cuda
    {'*': 'scan_cuda'}
    """
    module = alias.name if isinstance(node, ast.Import) else "." * node.level + (node.module or "")
    whole = module if isinstance(node, ast.Import) else full_name(module, alias.name)
    if library := needs_cuda(module) or needs_cuda(whole):
        return {"*": library.name} if alias.name != "triton" else {}  # Triton kernels are found one by one
    name = "" if isinstance(node, ast.Import) else alias.name
    if built := imported_extension(module, name, file.path, file.names.root):
        return {"*": built}
    if isinstance(node, ast.Import) and "." in module and not alias.asname:
        return {}
    where, name = origin_of(whole, file.path, file.names.root) if hops else (None, "")
    exported = cuda_only_exports(where, file.names.root, hops - 1) if where else {}
    if "*" in exported or not name:
        return exported
    return {"*": exported[name]} if name in exported else {}


def _is_always(name: str, node: Import, file: PythonFile) -> bool:
    """Return whether a name never stands for anything else, as it does after `except ImportError: te = None`."""
    bound = (binding for binding in file.names.bindings_in(file.tree, name) if binding.node is not node)
    return all(
        isinstance(binding.value, ast.Constant)
        or needs_cuda(binding.target)
        or is_extension(binding.target, file.path, file.names.root)
        for binding in bound
    )


@per_project(maxsize=8192)
def cuda_only_exports(path: Path, root: Path | None, hops: int) -> dict[str, str]:
    """Return the names in a project file that only CUDA has, with what each needs. "*" is the whole file."""
    if library := needed_by_imports(path, root):
        return {"*": library}
    if not may_need_cuda(path, root, hops):
        return {}
    try:
        file = read(path, root=root).python
    except (OSError, Unreadable):
        return {}
    if file is None:
        return {}
    names = _cuda_only_names(file, hops)
    defined_here = _cuda_only_definitions(file, tuple(names.items()))
    passed_on = {part: evidence.library for part, evidence in defined_here.items() if _is_passed_on(evidence)}
    defined = {part.name: passed_on[part] for part in file.tree.body if part in passed_on}  # type: ignore[attr-defined]
    beside = (node for node in file.names.imports if isinstance(node, ast.ImportFrom) and node.level == 1)
    imported_beside = {alias.asname or alias.name for node in beside for alias in node.names}
    kernels = _kernels_of(file) | {name for name in imported_beside if names.get(name) == "Triton"}
    launchers = dict.fromkeys(names_always_using(kernels, file.tree.body), "Triton")
    exported = launchers | names | defined
    return exported | _aliases(exported, file)


def cuda_only_definitions(file: PythonFile) -> dict[ast.AST, Evidence]:
    """Return the functions, classes, methods and tests of a file that can run on CUDA only."""
    return _cuda_only_definitions(file, tuple(cuda_only_names(file).items()))


@per_file
def _cuda_only_definitions(file: PythonFile, initial_names: tuple[tuple[str, str], ...]) -> dict[ast.AST, Evidence]:
    names = dict(initial_names)
    if not names and not _mentions_libraries(file):
        return {}
    tops = [statement for statement in file.tree.body if isinstance(statement, Definition)]
    parts = [(part, inner) for part in tops for inner in (part, *_methods(part))]
    evidence_of: dict[ast.AST, Evidence] = {}
    by_use = False  # look at definitions themselves before their calls
    while True:
        before = len(evidence_of)
        names |= _aliases(names, file)
        for part, definition in parts:
            if definition in evidence_of or part in evidence_of:
                continue
            if evidence := _evidence_by_use(definition, names, file) if by_use else _own_evidence(file, definition):
                evidence_of[definition] = evidence
                if evidence.kind != "name":
                    own = definition is part or _is_fixture(definition, file)
                    names.setdefault(definition.name if own else f"self.{definition.name}", evidence.library)
        for part in tops:
            tests = [method for method in _methods(part) if _is_test(method)]
            if tests and part not in evidence_of and all(method in evidence_of for method in tests):
                evidence_of[part] = evidence_of[tests[0]]
        if len(evidence_of) == before and by_use:
            return {
                inner: evidence_of[inner] for part in tops for inner in (part, *_methods(part)) if inner in evidence_of
            }
        by_use = True


def _methods(part: Definition) -> list[Definition]:
    return [node for node in part.body if isinstance(node, Definition)] if isinstance(part, ast.ClassDef) else []


def _is_passed_on(evidence: Evidence) -> bool:
    """Return whether the callers of a definition need its library as well.

    They do not if it is only named after one, or if the library, such as nvtx, has a counterpart for NPUs.
    """
    library = called(evidence.library)
    return evidence.kind != "name" and (library is None or library.needs_cuda)


def _aliases(names: dict[str, str], file: PythonFile) -> dict[str, str]:
    """Return the variables at the top of a file that are another name for one of these: scan = Scan.apply"""
    assigned = (node for node in file.tree.body if isinstance(node, ast.Assign) and len(node.targets) == 1)
    aliases = {getattr(node.targets[0], "id", ""): _named_in(_dotted(node.value), names) for node in assigned}
    return {name: library for name, library in aliases.items() if name and library}


def _mentions_libraries(file: PythonFile) -> bool:
    """Return whether any name in a file belongs to a CUDA library. This saves looking at every definition."""
    defined = (definition.name for kind in _RUN_LATER[:3] for definition in file.of_type(kind))  # type: ignore[attr-defined]
    return (
        any(map(cuda_library_named, (*file.names.read, *defined)))
        or any(map(library_needed_by, file.names.imports))
        or (is_test_or_benchmark(file) or "nvidia" in file.text or "nvml" in file.text or "cuda" in file.text.lower())
    )


@per_file
def is_test_or_benchmark(file: PythonFile) -> bool:
    return bool(_TEST.match(file.path.stem))


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, _Function) and node.name.startswith("test")


def _is_fixture(part: Definition, file: PythonFile) -> bool:
    return any("fixture" in file.source(decorator) for decorator in part.decorator_list)


@per_file
def _own_evidence(file: PythonFile, part: Definition) -> Evidence | None:
    """Return why a function, class or test is for CUDA only, judging by its name, its marks and what it refuses."""
    place = file.place(part)
    library = cuda_library_named(part.name)
    if library and (not library.imports or _is_test(part)) and not SAYS_WITHOUT.search(part.name):
        return Evidence("name", library.name, place)
    if marked := library_required_by_marks(part.decorator_list, file):
        return Evidence("library", marked, place)
    if isinstance(part, ast.ClassDef):
        made = (_own_evidence(file, method) for method in _methods(part) if method.name in _MAKES)
        return next(filter(None, made), None) or _loads_library(part, file) or _class_evidence(part, file)
    return _refusal_evidence(part, file) or _asks_driver(part, file) or _loads_library(part, file)


def _evidence_by_use(part: Definition, names: dict[str, str], file: PythonFile) -> Evidence | None:
    """Return why a function, class or test is for CUDA only, by its parameters, bases and calls."""
    if isinstance(part, ast.ClassDef):
        if base := next(filter(None, (_named_in(_dotted(parent), names) for parent in part.bases)), ""):
            return Evidence("library", base, file.place(part))
        made = (_evidence_by_use(method, names, file) for method in _methods(part) if method.name in _MAKES)
        return next(filter(None, made), None)
    if taken := next((names[argument.arg] for argument in part.args.args if argument.arg in names), ""):
        return Evidence("library", taken, file.place(part))
    text = file.source(part)  # searching it is faster than walking over the function
    if "_cuda" not in text and not any(name.removeprefix("self.").partition(".")[0] in text for name in names):
        return None
    for node, name in _unconditional_calls(file, part):
        if needed_there := _named_in(name, names):
            return Evidence("kernel", needed_there, file.place(node))
        if name.endswith("_cuda") and isinstance(node.func, ast.Name) and evidence_in_call(node, file):
            return Evidence("kernel", name, file.place(node))
    return None


def _named_in(dotted: str, names: dict[str, str]) -> str:
    """Return the library of a dotted name or of its beginning: ops.scan.apply, ops.scan, ops"""
    while dotted not in names and dotted:
        dotted = dotted.rpartition(".")[0]
    return names.get(dotted, "")


def _refusal_evidence(part: _Function, file: PythonFile) -> Evidence | None:
    asks_any = is_test_or_benchmark(file)
    for statement in _unconditional_statements(part):
        if refused := library_required_by(statement, file, asks_any):
            return Evidence("library", refused, file.place(statement))
    extension = _loads_extension(part, file)
    return Evidence("kernel", extension, file.place(part)) if extension else None


def _loads_extension(function: _Function, file: PythonFile) -> str:
    """Return the extension that a function only exists to load: if BACKEND is None: import _scan; BACKEND = _scan"""
    imports: list[Import] = []
    for statement in statements(function):
        if not isinstance(statement, _LOADS) or isinstance(getattr(statement, "value", None), ast.Call):
            return ""
        imports += [statement] if isinstance(statement, Import) else []
    libraries = [needed_by_import(node, alias, file, hops=1).get("*", "") for node in imports for alias in node.names]
    return libraries[0] if libraries and all(libraries) else ""


def _class_evidence(part: ast.ClassDef, file: PythonFile) -> Evidence | None:
    for module in (file.resolve(base) or "" for base in part.bases):
        if (library := imported(module)) and library.own_devices:  # such a class receives the library's device
            return Evidence("library", library.name, file.place(part))
    for statement in part.body:
        is_mark = isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "pytestmark"
        if is_mark and (marked := library_required_by_marks([statement.value], file)):  # type: ignore[attr-defined]
            return Evidence("library", marked, file.place(statement))
    methods = {member.name for member in part.body if isinstance(member, _Function)}
    asks = any(re.fullmatch(r"is_(?:\w+_)?(?:available|compatible|supported)", name) for name in methods)
    is_named = re.search(r"cuda|nvidia|triton", part.name, re.IGNORECASE)
    is_layer = is_named and (asks or _is_one_of_several(part, file))
    return Evidence("layer", part.name, file.place(part)) if is_layer else None


def _loads_library(part: Definition, file: PythonFile) -> Evidence | None:
    """Return evidence in code that calls CUDA's own libraries without torch: self.lib = ctypes.CDLL("libcudart.so")"""
    if not file.has("CDLL"):
        return None
    strings = (node for node in inside(part) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    candidates = ((text, cuda_library_named(str(text.value))) for text in strings)
    return next((Evidence("library", library.name, file.place(text)) for text, library in candidates if library), None)


def _is_one_of_several(part: ast.ClassDef, file: PythonFile) -> bool:
    """Return whether a class is the CUDA variant beside those for other devices: class CudaChecker(BaseChecker)"""
    kind = re.sub(r"^(?:cuda|nvidia)_?", "", part.name, flags=re.IGNORECASE)
    bases = (base for base in part.bases if re.sub("^(?:Base|Abstract)", "", getattr(base, "id", "")) == kind)
    return any(definition_of(base, file.names, "class") for base in bases)


def _asks_driver(part: _Function, file: PythonFile) -> Evidence | None:
    """def get_gpu_memory(): ... nvidia-smi ...: what it does beside it is for the same cards"""
    if not _CARDS.search(part.name):
        return None
    body = part.body[1:] if ast.get_docstring(part) is not None else part.body
    asks = any(_DRIVER.search(file.source(statement)) for statement in body)
    return Evidence("library", "NVML", file.place(part)) if asks else None


@lru_cache(maxsize=1024)
def _unconditional_statements(function: _Function) -> list[ast.stmt]:
    """The statements up to one that may return, but for `if p is None: return`, where there is nothing to do."""
    for at, statement in enumerate(function.body):
        may_return = isinstance(statement, ast.If) and any(
            isinstance(inner, ast.Return) for inner in statements(statement)
        )
        if may_return and not _has_nothing_to_do(statement):  # type: ignore[arg-type]
            return function.body[: at + 1]
    return function.body


def _has_nothing_to_do(choice: ast.If) -> bool:
    begins, asked = choice.body[0], choice.test
    is_empty = isinstance(asked, ast.Compare) and isinstance(asked.ops[0], ast.Eq) and _is_zero(asked.comparators[0])
    says_so = isinstance(begins, ast.Return) and (begins.value is None or isinstance(begins.value, ast.Constant))
    returns = says_so or (isinstance(begins, ast.Return) and is_empty)  # if boxes.numel() == 0: return boxes.new(0)
    return returns and not choice.orelse and not re.search(r"cuda|device|avail|have|has_|use_", ast.unparse(asked))


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


@per_file
def _unconditional_calls(file: PythonFile, function: _Function) -> list[tuple[ast.Call, str]]:
    """Return the unconditional calls in a function, each with its dotted name, such as `kernel` for kernel[grid](x).

    In tests, functions that are passed on count as called: spawn(run, 4)
    """
    passed = is_test_or_benchmark(file)
    calls: list[tuple[ast.Call, str]] = []
    stack: list[ast.AST] = list(_unconditional_statements(function))
    while stack:
        now = stack.pop()
        kind = type(now)
        if kind in (ast.Name, ast.Constant):
            continue
        if kind in (ast.If, ast.IfExp, ast.While):
            stack.append(now.test)  # type: ignore[attr-defined]
        elif kind is ast.BoolOp:
            stack.append(now.values[0])  # type: ignore[attr-defined]
        elif kind is not ast.ClassDef and not (kind is ast.Try and tolerates_missing_import(now)):
            if isinstance(now, ast.Call):
                calls.append((now, _dotted(now.func)))
                calls += [(now, argument.id) for argument in now.args if passed and isinstance(argument, ast.Name)]
            stack += children(now)
    return calls


def _dotted(node: ast.AST) -> str:
    """Return the dotted name of an expression, without subscripts, or "" if it is not made of names."""
    parts: list[str] = []
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        parts += [node.attr] if isinstance(node, ast.Attribute) else []
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
