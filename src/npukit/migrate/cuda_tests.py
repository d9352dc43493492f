"""Tests that only CUDA can run: they are skipped without a library for it, or test kernels written in Triton.

stays: @pytest.mark.skipif(not is_te_min_version("2.3"), reason="...")      if not HAVE_DEEPGEMM: pytest.skip(...)
       def test_permute(): from ours.triton_ops import permute_tokens       def test_x(fixture_that_needs_them): ...
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from npukit.migrate.cuda_functions import refuses
from npukit.migrate.cuda_only import launches_kernels, says_cuda
from npukit.migrate.needed_libraries import LIBRARY, holds, imports_library, is_of_library, lacks
from npukit.source import PythonFile
from npukit.source.names import where_defined

_SKIPS = ("skipif", "skipIf", "skipUnless")
_REQUIRES = re.compile(r"_?(?:requires?|needs?|skip_(?:if_no|unless))_")
_NEEDED = re.compile(
    r"requires?\b|needs?\b|only\b|not (?:installed|available|supported)|unavailable|without|lacks", re.IGNORECASE
)
_WITHOUT = re.compile(r"without|fallback|(?:^|_)(?:no|not|disabled?|missing|unavailable)(?:_|$)")
_MOVED = re.compile(r"\b(\w+)\([^()]*\.cuda\(\)")  # blur(x.cuda(), 3)
_SETUPS = ("setUp", "setUpClass", "setup_method", "setup_class")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Test = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_skipped_whole(file: PythonFile) -> bool:
    """Whether all tests of a file need a library for CUDA: pytest.skip(..., allow_module_level=True), pytestmark"""
    if _are_all_kept(file):
        return True
    if not any(word in file.text for word in ("allow_module_level", "pytestmark", "importorskip")):
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
    kept = _kept(file) if _is_of_tests(file) else ()
    parts = [each for each in file.tree.body if isinstance(each, _Test) and each not in kept] if kept else []
    tests = (each for part in parts for each in (part.body if isinstance(part, ast.ClassDef) else (part,)))
    return bool(kept) and all(each in kept for each in tests if _is_test(each))


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, _Function) and node.name.startswith("test")


@lru_cache(maxsize=4)
def _kept(file: PythonFile) -> frozenset[ast.AST]:
    if _is_of_tests(file):
        return frozenset(_found(file))
    functions = [each for each in file.tree.body if isinstance(each, _Function)] if "skipif" in file.text else []
    return frozenset(each for each in functions if _is_marked(each.decorator_list, file))


def _is_of_tests(file: PythonFile) -> bool:
    return file.path.name.startswith("test") or file.path.stem.endswith("_test")


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
        if _makes_refused(call, file):
            return True
        named = (call.func, *call.args) if depth and isinstance(call, ast.Call) else ()  # spawn(run, 4)
        if any(_needs(helper, file, depth - 1) for name in named for helper in _helpers(name, function, file)):
            return True
    return _compares_with_a_kernel(function, file) or any(launches_kernels(each, file) for each in function.body)  # type: ignore[attr-defined]


def _compares_with_a_kernel(test: ast.AST, file: PythonFile) -> bool:
    """assert close(blur(x), blur(x.cuda())), where blur launches a kernel if x.is_cuda, and NPUs do as the CPU does"""
    text = file.source(test) if ".cuda()" in file.text else ""
    for name in dict.fromkeys(_MOVED.findall(text)) if ".cuda()" in text else ():
        uses = [each for each in file.by_name.get(name, ()) if isinstance(each, ast.Name)]
        if len(re.findall(rf"\b{name}\(", text)) > _MOVED.findall(text).count(name) and uses:
            found = where_defined(uses[0], file.names, "is_cuda")
            choices = (each for each in ast.walk(found[0]) if isinstance(each, ast.If)) if found else ()
            asked = (each for each in choices if "is_cuda" in ast.unparse(each.test))
            if any(says_cuda(node) for each in asked for part in each.body for node in ast.walk(part)):
                return True
    return False


def _makes_refused(value: ast.expr | None, file: PythonFile) -> bool:
    """mixer = MambaMixer(...).cuda(), a class of the project that raises without mamba_ssm"""
    while isinstance(value, (ast.Call, ast.Attribute)):
        made = value.func if isinstance(value, ast.Call) else None
        if isinstance(made, ast.Name) and made.id[:1].isupper():
            found = where_defined(made, file.names, "raise ImportError")
            return found is not None and isinstance(found[0], ast.ClassDef) and refuses(*found)
        value = value.func if isinstance(value, ast.Call) else value.value
    return False


def _is_named_after(name: str) -> bool:
    """test_nccl_ub_enables_symmetric_memory, but not test_attention_without_flash_attn"""
    return name.startswith("test") and is_of_library(name) and not _WITHOUT.search(name)


def _helpers(called: ast.expr, function: ast.AST, file: PythonFile) -> list[ast.AST]:
    """The function of the file, or the method of the same class, that is called."""
    if isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "self":
        name, scope = called.attr, file.parent(function)
    else:
        name, scope = getattr(called, "id", ""), file.tree
    defined = (each.node for each in file.names.bindings_in(scope, name))
    return [each for each in defined if isinstance(each, _Function) and file.parent(each) is scope]


def _is_skip(choice: ast.If, file: PythonFile) -> bool:
    """if not HAVE_TE: pytest.skip("needs Transformer Engine")"""
    calls = [each.value for each in choice.body if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    skips = [each for each in calls if getattr(each.func, "attr", "") in ("skip", "skipTest")]
    if not skips:
        return False
    asks_more = isinstance(choice.test, ast.BoolOp) and isinstance(choice.test.op, ast.And)  # for one parameter only
    return lacks(choice.test, file.names) or (not asks_more and any(_says_needed(each.args) for each in skips))


def _is_tried(part: ast.Try) -> bool:
    """try: import deep_ep; except ImportError: pytest.skip(...)"""
    calls = (each for handler in part.handlers for each in ast.walk(handler) if isinstance(each, ast.Call))
    return any(getattr(each.func, "attr", "") == "skip" for each in calls) and imports_library(part)


def _says_needed(given: Sequence[ast.expr]) -> bool:
    texts = [str(each.value) for each in given if isinstance(each, ast.Constant)]
    return any(LIBRARY.search(text) and _NEEDED.search(text) for text in texts)


def _is_imported_or_skipped(value: ast.expr | None) -> bool:
    """pytest.importorskip("transformer_engine")"""
    name = getattr(value, "func", None)
    given = value.args[:1] if isinstance(value, ast.Call) and getattr(name, "attr", "") == "importorskip" else []
    return any(isinstance(each, ast.Constant) and LIBRARY.search(str(each.value)) for each in given)


def _is_marked(marks: Sequence[ast.expr], file: PythonFile, depth: int = 2) -> bool:
    for mark in marks:
        if isinstance(mark, (ast.List, ast.Tuple)) and _is_marked(mark.elts, file, depth):
            return True
        if isinstance(mark, ast.Name) and depth:
            values = [each.value for each in file.names.lookup(mark)[1] if each.value is not None]
            if _is_marked(values, file, depth - 1):
                return True
        name = getattr(mark, "id", getattr(mark, "attr", ""))
        if _REQUIRES.match(name) and is_of_library(name):  # @require_flash_attn
            return True
        if isinstance(mark, ast.Call) and (kind := getattr(mark.func, "attr", "")) in _SKIPS:
            given = [*mark.args[1:], *(each.value for each in mark.keywords)]
            asks = holds if kind == "skipUnless" else lacks
            if any(asks(each, file.names) for each in mark.args[:1]) or _says_needed(given):
                return True
    return False
