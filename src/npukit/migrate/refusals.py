"""Where code says that it needs CUDA: tests that are skipped without it, and functions that refuse to run.

@unittest.skipIf(not torch.cuda.is_available(), "Triton kernels need CUDA")
if device.type == "cpu": self.skipTest("Triton kernels need CUDA")
if not x.is_cuda: raise ValueError("Only CUDA tensors are supported")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.conditions import is_negated
from npukit.migrate.cuda_layers import after, required
from npukit.source import PythonFile

_REFUSAL = re.compile(r"kernel|CUDA tensor|NVML|[Tt]riton|TileLang|cuDNN|cuBLAS|TensorRT|NVSHMEM|[Ff][Pp]8|[Qq]uantiz")
_LEAVE = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_SKIPS = ("skipif", "skipIf", "skipUnless")
_SETUPS = ("setUp", "setUpClass", "setup_method", "setup_class")
_Test = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def named(*names: str) -> list[ast.AST]:
    """Names as nodes, for what they say."""
    return [ast.Name(name, ast.Load()) for name in names]


def skipped(call: ast.Call, file: PythonFile) -> list[list[ast.AST]]:
    """What the tests do that a call skips, a group for each method: @pytest.mark.skipif(...), needs_cuda = ..."""
    if getattr(call.func, "attr", "") not in _SKIPS:
        return []
    about = [*_words_of(call), *_names_of_tests(file)]
    return [
        [*about, *_other_marks(test), owner, *group, *_called(group, test, file)]
        for owner, test in _tests(call, file)
        for group in _groups(test)
    ]


def _called(group: list[ast.AST], test: ast.AST, file: PythonFile) -> list[ast.AST]:
    """What the methods of the same class do that a test calls: self._build_layer()"""
    scope = test if isinstance(test, ast.ClassDef) else file.parent(test)
    methods = scope.body if isinstance(scope, ast.ClassDef) else []
    names = {
        node.func.attr
        for part in group
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return [part for each in methods if getattr(each, "name", "") in names for part in each.body]  # type: ignore[attr-defined]


def prepares(call: ast.Call, file: PythonFile) -> list[ast.AST]:
    """What runs before each test of the class that a mark stands in: its setups and fixtures, and the class itself."""
    test = file.parent(call)
    scope = file.parent(test) if isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    if not isinstance(scope, ast.ClassDef):
        return []
    setups = [each for each in scope.body if isinstance(each, ast.FunctionDef) and _is_setup(each, file)]
    return [scope, *(part for each in setups for part in each.body)]


def _is_setup(function: ast.FunctionDef, file: PythonFile) -> bool:
    return function.name in _SETUPS or any("autouse=True" in file.source(each) for each in function.decorator_list)


def _other_marks(test: ast.AST) -> Iterator[ast.AST]:
    """What else a test is skipped for: @pytest.mark.skipif(not HAVE_TRITON, reason="needs Triton")"""
    for mark in getattr(test, "decorator_list", ()):
        if isinstance(mark, ast.Call) and getattr(mark.func, "attr", "") in _SKIPS:
            yield from [*mark.args[:1], *_words_of(mark)]


def _tests(call: ast.Call, file: PythonFile) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The tests that a mark stands above, itself or by its name, each with what the mark is about as a whole: the test
    itself, or what `pytestmark` stands in."""
    around = file.parent(call)
    if isinstance(around, ast.List):  # pytestmark = [pytest.mark.skipif(...)]
        around = file.parent(around)
    if isinstance(around, _Test) and call in around.decorator_list:
        yield around, around
    target = around.targets[0] if isinstance(around, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return
    if target.id == "pytestmark":
        scope = file.parent(around) if around else None
        tests = (each for each in getattr(scope, "body", ()) if isinstance(each, _Test))
        yield from ((scope, each) for each in tests if scope and each.name.lower().startswith("test"))
    for use in file.uses(target):
        test = file.parent(use)
        if isinstance(test, _Test) and use in test.decorator_list:
            yield test, test


def _groups(test: ast.AST) -> Iterator[list[ast.AST]]:
    if isinstance(test, ast.ClassDef):
        for method in test.body:
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name.startswith("test"):
                yield [*named(test.name, method.name), *method.body]
    elif isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield [*named(test.name), *test.body]


def prepared(function: ast.AST, file: PythonFile) -> list[list[ast.AST]]:
    """What the tests do that take a fixture, or that a setUp prepares: a group for each.

    >>> prepared(device, file)  # @pytest.fixture def device(): if not torch.cuda.is_available(): pytest.skip()
    """
    scope = file.parent(function)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or scope is None:
        return []
    if isinstance(scope, ast.ClassDef) and function.name in _SETUPS:
        return list(_groups(scope))
    marks = [file.source(mark) for mark in function.decorator_list]
    if not any(re.match(r"(?:pytest\.)?fixture\b", mark) for mark in marks):
        return []
    for_all = any("autouse=True" in mark for mark in marks)
    found = [each for part in scope.body for each in _with_arguments(part)]  # type: ignore[attr-defined]
    names = {function.name}
    for test, given in found:  # fixtures that take it stand below it
        names |= {test.name} if names & given else set()
    return [
        [*_other_marks(test), *named(test.name), *test.body]
        for test, given in found
        if test.name.startswith("test") and (for_all or test.name in names)
    ]


def _with_arguments(part: ast.AST) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, set[str]]]:
    """The functions of a block and of its classes, each with the names of what it takes."""
    for each in part.body if isinstance(part, ast.ClassDef) else (part,):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield each, {argument.arg for argument in each.args.args}


def _names_of_tests(file: PythonFile) -> list[ast.AST]:
    """What a file of tests is about: test_fp8.py, triton/test_norm.py"""
    stem, folder = file.path.stem, file.path.parent.name
    is_test = stem.startswith("test_") or stem.endswith("_test")
    return _words(f"{stem} {folder}") if is_test else []


def _words_of(call: ast.Call) -> list[ast.AST]:
    """The reason that a test is skipped for, word by word."""
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    return _words(" ".join(str(each.value) for each in given if isinstance(each, ast.Constant)))


def _words(text: str) -> list[ast.AST]:
    return named(*text.replace("kernel", "triton").split())


def speaks_of_kernels(choice: ast.If | ast.IfExp | ast.While) -> bool:
    """if not x.is_cuda: raise ValueError("Only CUDA tensors are supported")"""
    body = choice.body if isinstance(choice.body, list) else [choice.body]
    if not isinstance(body[-1], (ast.Raise, ast.Expr)):
        return False
    found = (
        each.value for each in ast.walk(body[-1]) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    texts = list(found)
    only_said = len(body) == 1 and any("triton" in text for text in texts)  # warnings.warn("Use attn_impl: triton")
    return only_said or any(_REFUSAL.search(text) for text in texts)


def leaves(statement: ast.stmt) -> bool:
    """Whether nothing behind a statement runs: return, raise, pytest.skip(), sys.exit()"""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) if isinstance(call, ast.Call) else ""
    return isinstance(statement, _LEAVE) or name in ("skip", "skipTest", "exit")


def left_without(choice: ast.If, file: PythonFile) -> list[ast.AST]:
    """What runs only where an early `return` or skip was passed, and what its function is about."""
    function = file.function(choice)
    about = named("nvidia") if _asks_for_cudnn(function) or _is_about_nvml(function) else []
    name = getattr(function, "name", "")
    return [*required(choice, file), *after(choice, file), *named(name), *_names_of_tests(file), *about]


def refused_on_the_cpu(choice: ast.IfExp, file: PythonFile) -> tuple[ast.stmt, ast.If] | None:
    """The statement that chooses a device, and the one behind it that refuses the CPU.

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu": pytest.skip(...)
    """
    statement = file.statement(choice)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if target is None or getattr(choice.orelse, "value", "") != "cpu":
        return None
    device = file.source(target)
    for each in after(statement, file):
        test = each.test if isinstance(each, ast.If) and leaves(each.body[-1]) else None
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            continue
        against = getattr(test.comparators[0], "value", "")
        refuses = (type(test.ops[0]), against) in ((ast.Eq, "cpu"), (ast.NotEq, "cuda"))
        if refuses and file.source(test.left) in (device, f"{device}.type"):
            return statement, each  # type: ignore[return-value]
    return None


def _is_about_nvml(function: ast.AST) -> bool:
    """Whether a function is documented as one about NVIDIA's management library."""
    text = ast.get_docstring(function, clean=False) if isinstance(function, ast.FunctionDef) else None
    return bool(text and re.search(r"\bnvml\b|nvidia-smi", text, re.IGNORECASE))


def _asks_for_cudnn(function: ast.AST) -> bool:
    """Whether a function decides by torch.backends.cudnn.enabled whether something can be used."""
    return isinstance(function, ast.FunctionDef) and any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node.attr == "enabled"
        and getattr(node.value, "attr", getattr(node.value, "id", "")) == "cudnn"
        for node in ast.walk(function)
    )


def only_refuses(condition: ast.expr, file: PythonFile) -> bool:
    """Whether a condition only refuses something on CUDA: if device.type == "cuda": raise NotImplementedError"""
    choice = file.parent(condition)
    is_whole = isinstance(choice, ast.If) and choice.test is condition and not choice.orelse
    if not isinstance(condition, ast.Compare) or is_negated(condition) or not is_whole:
        return False
    body = choice.body  # type: ignore[union-attr]
    asks_torch = any("torch.cuda" in file.source(each) for each in body)  # assert torch.cuda.is_available()
    return all(isinstance(each, (ast.Raise, ast.Assert)) for each in body) and not asks_torch
