"""Tests that only CUDA can run: they are skipped without a library for it, or test kernels written in Triton.

stays: @pytest.mark.skipif(not is_te_min_version("2.3"), reason="...")      if not HAVE_DEEPGEMM: pytest.skip(...)
       def test_permute(): from ours.triton_ops import permute_tokens       def test_x(fixture_that_needs_them): ...

What a condition asks for is looked up in the project: HAVE_GTP = HAVE_TE, of a file that it is imported from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from npukit.migrate.cuda_only import launches_kernels
from npukit.source import PythonFile
from npukit.source.names import Names, file_of, names_of

_LIBRARY = re.compile(
    r"transformer[\s_-]?engine|(?:^|[_\W])TE(?:[_\W]|$)|(?:^|[_\W])te_(?:min|version|general|supports|spec)|_te_|triton|tilelang"
    r"|deep_?gemm|deep_?ep(?:[_\W]|$)|hybrid_?ep|nccl_?ep(?:[_\W]|$)|cutlass|bitsandbytes|mamba_?ssm|causal_?conv1d|flash_?mla"
    r"|flash[_-]?attn|(?:^|[_\W])fa_?[234](?:[_\W]|$)|is_fa_min|nvshmem|nvls|symm(?:etric)?_?mem|tensorrt|(?:mx|nv)?fp[48]|kitchen"
    r"|blackwell|hopper|compute.capability|device_capability|(?:^|\W)SM\s?\d\d|smoothquant_cuda|torch_int|flashinfer|cudnn",
    re.IGNORECASE,
)
_SKIPS = ("skipif", "skipIf", "skipUnless")
_REQUIRES = re.compile(r"_?(?:requires?|needs?|skip_(?:if_no|unless))_")
_NEEDED = re.compile(
    r"requires?\b|needs?\b|only\b|not (?:installed|available|supported)|unavailable|without|lacks", re.IGNORECASE
)
_WITHOUT = re.compile(r"without|fallback|(?:^|_)(?:no|not|disabled?|missing|unavailable)(?:_|$)")
_SETUPS = ("setUp", "setUpClass", "setup_method", "setup_class")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Test = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DEPTH = 3  # of names that stand for others


def is_skipped_whole(file: PythonFile) -> bool:
    """Whether all tests of a file need a library for CUDA: pytest.skip(..., allow_module_level=True), pytestmark"""
    if _are_all_kept(file):
        return True
    if not re.search("allow_module_level|pytestmark|importorskip", file.text):
        return False
    for each in file.tree.body:
        if isinstance(each, _Function) and each.name == "setup_module" and _needs(each, file):
            return True
        if isinstance(each, ast.If) and "allow_module_level" in file.source(each) and _is_skip(each, file):
            return True
        if _is_pytestmark(each) and _is_marked([each.value], file):  # type: ignore[attr-defined]
            return True
        if isinstance(each, (ast.Expr, ast.Assign)) and _is_imported_or_skipped(each.value):
            return True
    return False


def tests_for_cuda(file: PythonFile) -> Iterator[ast.AST]:
    """The tests and classes of tests in a file that only CUDA can run."""
    kept = _kept(file)
    for part in file.tree.body if kept else ():
        tests = [each for each in part.body if _is_test(each)] if isinstance(part, ast.ClassDef) else []
        if part in kept or (tests and kept.issuperset(tests)):
            yield part
        else:
            yield from (each for each in tests if each in kept)


def _are_all_kept(file: PythonFile) -> bool:
    kept = _kept(file)
    parts = [each for each in file.tree.body if isinstance(each, _Test) and each not in kept] if kept else []
    tests = (each for part in parts for each in (part.body if isinstance(part, ast.ClassDef) else (part,)))
    return bool(kept) and all(each in kept for each in tests if _is_test(each))


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, _Function) and node.name.startswith("test")


@lru_cache(maxsize=4)
def _kept(file: PythonFile) -> frozenset[ast.AST]:
    is_test = file.path.name.startswith("test") or file.path.stem.endswith("_test")
    return frozenset(_found(file)) if is_test else frozenset()


def _found(file: PythonFile) -> Iterator[ast.AST]:
    fixtures = _fixtures(file.tree.body, file)
    for part in file.tree.body:
        if isinstance(part, ast.ClassDef):
            own = fixtures | _fixtures(part.body, file)
            if _is_marked(part.decorator_list, file) or _has_mark(part, file) or own.intersection(_SETUPS):
                yield part
            else:
                yield from (each for each in part.body if _is_test(each) and _is_kept(each, own, file))
        elif (_is_test(part) and _is_kept(part, fixtures, file)) or (
            isinstance(part, _Function) and any(launches_kernels(each, file) for each in part.body)
        ):
            yield part


def _fixtures(body: Sequence[ast.stmt], file: PythonFile) -> set[str]:
    """The names of the fixtures and setups in a block that only CUDA can run."""
    functions = [each for each in body if isinstance(each, _Function)]
    return {each.name for each in functions if (each.name in _SETUPS or _is_fixture(each, file)) and _needs(each, file)}


def _is_kept(test: ast.AST, fixtures: set[str], file: PythonFile) -> bool:
    taken = {each.arg for each in test.args.args}  # type: ignore[attr-defined]
    return not fixtures.isdisjoint(taken) or _needs(test, file)


def _is_fixture(function: ast.FunctionDef | ast.AsyncFunctionDef, file: PythonFile) -> bool:
    return any("fixture" in file.source(each) for each in function.decorator_list)


def _has_mark(part: ast.ClassDef, file: PythonFile) -> bool:
    return any(_is_marked([each.value], file) for each in part.body if _is_pytestmark(each))  # type: ignore[attr-defined]


def _is_pytestmark(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark"


@lru_cache(maxsize=256)
def _needs(function: ast.AST, file: PythonFile, depth: int = 2) -> bool:
    """Whether a function is skipped without a library for CUDA, calls a helper that is, or launches kernels."""
    if _is_marked(function.decorator_list, file) or _is_named_after(function.name):  # type: ignore[attr-defined]
        return True
    for each in function.body:  # type: ignore[attr-defined]
        if (isinstance(each, ast.If) and _is_skip(each, file)) or (isinstance(each, ast.Try) and _is_tried(each)):
            return True
        call = each.value if isinstance(each, (ast.Expr, ast.Assign, ast.Return)) else None
        if _is_imported_or_skipped(call):
            return True
        named = (call.func, *call.args) if depth and isinstance(call, ast.Call) else ()  # spawn(run, 4)
        if any(_needs(helper, file, depth - 1) for name in named for helper in _helpers(name, function, file)):
            return True
    return any(launches_kernels(each, file) for each in function.body)  # type: ignore[attr-defined]


def _is_named_after(name: str) -> bool:
    """test_nccl_ub_enables_symmetric_memory, but not test_attention_without_flash_attn"""
    return name.startswith("test") and bool(_LIBRARY.search(name)) and not _WITHOUT.search(name)


def _helpers(called: ast.expr, function: ast.AST, file: PythonFile) -> list[ast.AST]:
    """The function of the file, or the method of the same class, that is called."""
    if isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "self":
        name, scope = called.attr, file.parent(function)
    else:
        name, scope = getattr(called, "id", ""), file.tree
    return [each for each in getattr(scope, "body", ()) if isinstance(each, _Function) and each.name == name]


def _is_skip(choice: ast.If, file: PythonFile) -> bool:
    """if not HAVE_TE: pytest.skip("needs Transformer Engine")"""
    calls = [each.value for each in choice.body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    skips = [each for each in calls if getattr(each.func, "attr", "") in ("skip", "skipTest")]
    if not skips:
        return False
    asks_more = isinstance(choice.test, ast.BoolOp) and isinstance(choice.test.op, ast.And)  # for one parameter only
    return _lacks(choice.test, file.names) or (not asks_more and any(_says_needed(each.args) for each in skips))


def _is_tried(part: ast.Try) -> bool:
    """try: import deep_ep; except ImportError: pytest.skip(...)"""
    calls = (each for handler in part.handlers for each in ast.walk(handler) if isinstance(each, ast.Call))
    return any(getattr(each.func, "attr", "") == "skip" for each in calls) and _imports_library(part)


def _says_needed(given: Sequence[ast.expr]) -> bool:
    texts = [str(each.value) for each in given if isinstance(each, ast.Constant)]
    return any(_LIBRARY.search(text) and _NEEDED.search(text) for text in texts)


def _is_imported_or_skipped(value: ast.expr | None) -> bool:
    """pytest.importorskip("transformer_engine")"""
    name = getattr(value, "func", None)
    given = value.args[:1] if isinstance(value, ast.Call) and getattr(name, "attr", "") == "importorskip" else []
    return any(isinstance(each, ast.Constant) and _LIBRARY.search(str(each.value)) for each in given)


def _is_marked(marks: Sequence[ast.expr], file: PythonFile, depth: int = 2) -> bool:
    for mark in marks:
        if isinstance(mark, (ast.List, ast.Tuple)) and _is_marked(mark.elts, file, depth):
            return True
        if isinstance(mark, ast.Name) and depth:
            values = [each.value for each in file.names.lookup(mark)[1] if each.value is not None]
            if _is_marked(values, file, depth - 1):
                return True
        name = getattr(mark, "id", getattr(mark, "attr", ""))
        if _REQUIRES.match(name) and _LIBRARY.search(name):  # @require_flash_attn
            return True
        if isinstance(mark, ast.Call) and (kind := getattr(mark.func, "attr", "")) in _SKIPS:
            given = [*mark.args[1:], *(each.value for each in mark.keywords)]
            asks = _holds if kind == "skipUnless" else _lacks
            if any(asks(each, file.names) for each in mark.args[:1]) or _says_needed(given):
                return True
    return False


def _lacks(condition: ast.expr, names: Names) -> bool:
    """Whether it holds where a library for CUDA is missing: not HAVE_TE, te_gemm is None, version < "2.3" """
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _holds(condition.operand, names)
    if isinstance(condition, ast.BoolOp):
        any_or_all = any if isinstance(condition.op, ast.Or) else all
        return any_or_all(_lacks(each, names) for each in condition.values)
    if isinstance(condition, ast.Compare) and isinstance(condition.ops[0], (ast.Is, ast.Lt, ast.LtE)):
        return _is_about(condition.left, names)
    return False


def _holds(condition: ast.expr, names: Names) -> bool:
    """Whether it holds only where a library for CUDA is there."""
    if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
        return _lacks(condition.operand, names)
    if isinstance(condition, ast.BoolOp):
        any_or_all = any if isinstance(condition.op, ast.And) else all
        return any_or_all(_holds(each, names) for each in condition.values)
    if isinstance(condition, ast.Compare):
        return isinstance(condition.ops[0], (ast.IsNot, ast.Gt, ast.GtE)) and _is_about(condition.left, names)
    return _is_about(condition, names)


def _is_about(asked: ast.expr, names: Names, depth: int = _DEPTH) -> bool:
    """Whether a name, or what it stands for in the project, is of a library for CUDA."""
    found = [each for each in ast.walk(asked) if isinstance(each, (ast.Name, ast.Attribute))]
    if any(_LIBRARY.search(each.id if isinstance(each, ast.Name) else each.attr) for each in found):
        return True
    return depth > 0 and any(_stands_for(each.id, names, depth) for each in found if isinstance(each, ast.Name))


@lru_cache(maxsize=256)
def _stands_for(name: str, names: Names, depth: int) -> bool:
    for binding in names.bindings_in(names.tree, name):
        if binding.kind == "import":
            module, _, inner = binding.target.rpartition(".")
            if _LIBRARY.search(binding.target):
                return True
            is_class = inner[:1].isupper() and not inner.isupper()
            where = file_of(module, names.path, names.root) if module and not is_class else None
            others = names_of(where, names.root) if where and depth else None
            if others and _stands_for(inner, others, depth - 1):
                return True
            continue
        around = names.parents.get(binding.node)
        while around is not None and not isinstance(around, (ast.Try, ast.Module)):
            around = names.parents.get(around)
        if isinstance(around, ast.Try) and _imports_library(around):
            return True
        if binding.value is not None and depth and _is_about(binding.value, names, depth - 1):
            return True
        if isinstance(binding.node, _Function) and _imports_library(binding.node):
            return True
    return False


def _imports_library(part: ast.AST) -> bool:
    """try: import deep_gemm; HAVE = True"""
    for each in ast.walk(part):
        if isinstance(each, ast.ImportFrom) and _LIBRARY.search(each.module or ""):
            return True
        if isinstance(each, ast.Import) and any(_LIBRARY.search(alias.name) for alias in each.names):
            return True
    return False
