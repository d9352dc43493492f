"""What a condition about CUDA decides. If that is for CUDA alone, the condition and the code behind it stay.

stays:    if torch.cuda.is_available(): major, _ = torch.cuda.get_device_capability()
          HAS_TRITON = torch.cuda.is_available() and find_spec("triton")
          providers = ["CUDAExecutionProvider"] if cuda else []     # cuda = torch.cuda.is_available()
becomes:  if torch.cuda.is_available(): model.cuda()

A condition decides what is below it, behind an `and`, or after it where it leaves the function or is asserted; a
variable or a function that holds it decides what its users do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from npukit.migrate.conditions import conditions, decides_about_torch, is_cpu, is_negated
from npukit.migrate.cuda_functions import functions_for_cuda
from npukit.migrate.cuda_layers import (
    after,
    below_imports,
    counted_by_mmcv,
    for_older_torch,
    is_file_for_cuda,
    is_layer_for_cuda,
    is_method_for_cuda,
    read_by_its_class,
    replaces_cuda,
    served,
    told_to_mocks,
    under_its_name,
    with_numba,
    with_nvidia_smi,
    with_optional,
)
from npukit.migrate.cuda_only import dispatches_kernels, uses_kernels
from npukit.migrate.cuda_tests import tests_for_cuda
from npukit.migrate.device_choices import beside_the_device
from npukit.migrate.own_cuda import calls_own_cuda
from npukit.migrate.purposes import is_for_any, is_for_cuda
from npukit.migrate.refusals import (
    leaves,
    left_without,
    named,
    only_refuses,
    prepared,
    prepares,
    refused_on_the_cpu,
    skipped,
    speaks_of_kernels,
)
from npukit.source import PythonFile

_OTHERS = re.compile(r"[\"'](?:xpu|hpu|musa|mlu|tpu|xla|rocm|hip|nvshmem|nixl)[\"':]")
_PACKAGE = re.compile(r"[-_]?(?:gpu|cuda|cu)?[\d.]*")  # the end of a package's name: "onnxruntime" + "-gpu"
_STREAMS = re.compile(r"\btorch\.cuda\.(?:current_stream|stream)\(")  # what torch does on a device, not kernels
_SEVERAL = "It chooses among several backends, and NPUs are not one of them."
_AVAILABLE = "torch.cuda.is_available"
_REFUSED = "It refuses something on CUDA, which need not hold on an NPU."
_CUDA_ONLY = "What it decides is for CUDA only."
_NOTHING: list[ast.AST] = [ast.Pass()]  # what a condition decides about CUDA that holds on the CPU only, or warns there


def why_left(condition: ast.expr, file: PythonFile) -> str:
    """Why a condition about CUDA is not ours to change; empty when it is."""
    if condition in _judged(file):
        return _CUDA_ONLY
    if only_refuses(condition, file):
        return _REFUSED
    chain = _chain(condition, file)
    is_asserted = isinstance(file.parent(chain), ast.Assert)  # x.is_cuda or x.device.type == "xla"
    if (
        not (_asks(condition) or is_asserted)
        and _OTHERS.search(file.source(chain))
        and not decides_about_torch(condition, file)
    ):
        return _SEVERAL
    return ""


def _asks(condition: ast.expr) -> bool:
    """Whether a condition is torch.cuda.is_available(), which names no device to choose."""
    return isinstance(condition, ast.Call) and not condition.args


def for_cuda_only(node: ast.AST, file: PythonFile) -> bool:
    """Whether a node runs only where a condition that stays holds, or belongs to the project's own layer for CUDA."""
    if is_file_for_cuda(file) or replaces_cuda(node, file) or told_to_mocks(node, file):
        return True
    decided = _decided_nodes(file)
    has_methods = _has_methods(file)
    return any(
        each in decided or is_layer_for_cuda(each) or (has_methods and is_method_for_cuda(each, file))
        for each in (node, *file.ancestors(node))
    )


@lru_cache(maxsize=4)
def _has_methods(file: PythonFile) -> bool:
    return "def cuda(" in file.text or "abstractmethod" in file.text


def _chain(condition: ast.expr, file: PythonFile) -> ast.AST:
    """The whole statement or expression that branches by the condition."""
    around: ast.AST = condition
    for parent in file.ancestors(condition):
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp)):
            break
        around = parent
        if isinstance(parent, ast.If):
            break
    return around


@lru_cache(maxsize=4)
def left_tests(file: PythonFile) -> tuple[ast.AST, ...]:
    """The tests that only CUDA can run and that say where they run, in a file where no condition about CUDA stays."""
    if _judged(file):
        return ()
    found = dict.fromkeys(each for each in tests_for_cuda(file) if "cuda" in file.source(each))
    return tuple(each for each in found if file.parent(each) not in found)


@lru_cache(maxsize=4)
def lines_for_cuda(file: PythonFile) -> tuple[tuple[int, int], ...]:
    """The first and last lines of what runs only where a condition that stays holds."""
    nodes = [
        node for node in _decided_nodes(file) if isinstance(node, (ast.stmt, ast.expr)) and hasattr(node, "lineno")
    ]
    return tuple((node.lineno, node.end_lineno or node.lineno) for node in nodes)


def _cases_for_cuda(file: PythonFile) -> list[ast.match_case]:
    """match kind: case "cuda": count = torch.cuda.get_device_properties(0).multi_processor_count"""
    found = [
        node
        for node in file.by_type.get(ast.match_case, ())
        if isinstance(node, ast.match_case) and isinstance(node.pattern, ast.MatchValue)
    ]
    return [each for each in found if file.source(each.pattern)[1:-1] == "cuda" and is_for_cuda(each.body, file)]


@lru_cache(maxsize=4)
def alone_for_cuda(file: PythonFile) -> dict[ast.expr, list[ast.stmt]]:
    """The conditions that choose the device, each with the calls beside it that are for CUDA alone."""
    asked = (file.parent(func) for func in file.by_name.get("is_available", ()) if "set_device" in file.text)
    calls = [each for each in asked if isinstance(each, ast.Call) and file.resolve(each.func) == _AVAILABLE]
    found = {call: beside_the_device(call, file) for call in calls}
    return {call: statements for call, statements in found.items() if statements}


@lru_cache(maxsize=4)
def _decided_nodes(file: PythonFile) -> frozenset[ast.AST]:
    judged = (each for decided in _judged(file).values() for each in decided)
    cases = (each for case in _cases_for_cuda(file) for each in case.body)
    alone = (each for statements in alone_for_cuda(file).values() for each in statements)
    others = (
        *cases,
        *alone,
        *below_imports(file),
        *under_its_name(file),
        *with_numba(file),
        *with_nvidia_smi(file),
        *for_older_torch(file),
        *counted_by_mmcv(file),
        *served(file),
        *with_optional(file),
        *tests_for_cuda(file),
        *functions_for_cuda(file),
    )
    decided = frozenset([*judged, *others, *_behind_skips(file)])
    while decided and (helpers := frozenset(_helpers(decided, file)) - decided):
        decided |= helpers
    return decided


def _behind_skips(file: PythonFile) -> Iterator[ast.AST]:
    """The functions that begin with a call of one that skips for the sake of code for CUDA: _skip_without_backend()"""
    for condition in _judged(file):
        skips = file.function(condition)
        choice = file.parent(file.parent(condition) or condition)
        if not isinstance(choice, ast.If) or not isinstance(choice.body[-1], ast.Expr) or not leaves(choice.body[-1]):
            continue
        for use in file.by_name.get(getattr(skips, "name", ""), ()):
            statement, function = file.statement(use), file.function(use)
            if isinstance(statement, ast.Expr) and statement in getattr(function, "body", ()):
                yield function


def _helpers(decided: frozenset[ast.AST], file: PythonFile) -> Iterator[ast.AST]:
    """The functions and classes of a file's own, as those of tests are, that only code which stays uses."""
    prefix = "" if file.path.name.startswith("test") else "_"
    for function in file.tree.body:
        if isinstance(function, (ast.FunctionDef, ast.ClassDef)) and function.name.startswith(prefix):
            uses = [each for each in file.by_name.get(function.name, ()) if isinstance(each, ast.Name)]
            if uses and all(any(each in decided for each in file.ancestors(use)) for use in uses):
                yield function


@lru_cache(maxsize=4)
def _judged(file: PythonFile) -> dict[ast.expr, list[ast.AST]]:
    """The conditions about CUDA in this file that stay, each with the nodes that it decides about."""
    stay: dict[ast.expr, list[ast.AST]] = {}
    for condition in conditions(file):
        if refused := _refused(condition, file) or read_by_its_class(condition, file):
            stay[condition] = refused
            continue
        regions = list(_decides(condition, file))
        if condition in alone_for_cuda(file):
            continue
        if any(is_for_any(each, file) for each in regions):
            stays = ".cuda()" in file.text and all(calls_own_cuda(each, file) for each in regions)
        else:
            stays = any(is_for_cuda(each, file) for each in regions)
        if stays:
            stay[condition] = [node for region in regions for node in region]
    return stay


def _refused(condition: ast.expr, file: PythonFile) -> list[ast.AST]:
    """What a device is chosen for, where the CPU is refused for the sake of code for CUDA."""
    choice = file.parent(condition)
    found = refused_on_the_cpu(choice, file) if isinstance(choice, ast.IfExp) and choice.test is condition else None
    if found is None:
        return []
    chosen, refusal = found
    behind = left_without(refusal, file)
    return [chosen, *behind] if speaks_of_kernels(refusal) or is_for_cuda(behind, file) else []


def _decides(condition: ast.expr, file: PythonFile, depth: int = 2) -> Iterator[list[ast.AST]]:
    """Everything that runs only where the condition holds, as groups of nodes: one for each place that asks."""
    node, negated, beside = _whole_condition(condition, file)
    if any(is_cpu(each) for each in beside):
        yield _NOTHING
        return
    parent = file.parent(node)
    if isinstance(parent, ast.IfExp) and isinstance(file.parent(parent), ast.FormattedValue):
        word = parent.body.value if isinstance(parent.body, ast.Constant) else None
        beside += named("nvidia") if isinstance(word, str) and _PACKAGE.fullmatch(word) else []
    is_expected = isinstance(parent, ast.Assert) and getattr(file.function(parent), "name", "").startswith("test")
    is_about_kernels = _is_of_a_tensor(condition) and not (
        is_expected or _only_places(parent) or _STREAMS.search(file.source(file.function(condition)))
    )
    kernels = named("triton") if is_about_kernels and uses_kernels(file) else []
    if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and parent.test is node:
        kernels += named("triton") if speaks_of_kernels(parent) else []
        refusal = parent.body if kernels and negated and isinstance(parent, ast.If) else []
        region = [*beside, *kernels, *refusal, *_taker(parent, file), *_branch(parent, negated, file)]
        leaves_it = negated and isinstance(parent, ast.If) and leaves(parent.body[-1])
        tests = prepared(file.function(parent), file) if leaves_it else []
        yield from _for_each(tests, region, file) if tests else [region]
    elif isinstance(parent, ast.Call) and (groups := skipped(parent, file)):
        before = prepares(parent, file)
        yield from [[*beside, *before]] if is_for_cuda(before, file) else _for_each(groups, beside, file)
    elif isinstance(parent, ast.Assert):
        yield [*beside, *kernels, *after(parent, file)]
    elif isinstance(parent, ast.Return):
        yield from _by_callers(file.function(parent), beside, file, depth)
    elif isinstance(parent, (ast.Assign, ast.AnnAssign)) and depth:
        yield from _by_variable(parent, beside, file, depth)
    elif isinstance(parent, ast.keyword) and is_for_cuda([call := file.parent(parent) or parent], file):
        yield [*beside, call]  # faiss.Kmeans(d, k, gpu=use_cuda)
    elif beside:
        yield beside


def _for_each(tests: list[list[ast.AST]], before: list[ast.AST], file: PythonFile) -> Iterator[list[ast.AST]]:
    """What runs before each test, and the test; []: what may be anything. A mark stays where all tests need it."""
    for test in tests:
        whole = [*before, *test]
        yield whole if is_for_cuda(whole, file) else []


def _whole_condition(condition: ast.expr, file: PythonFile) -> tuple[ast.AST, bool, list[ast.AST]]:
    """The expression around a condition that asks the same, whether it asks the opposite, and what else must hold."""
    negated = is_negated(condition)
    node: ast.AST = condition
    beside: list[ast.AST] = []
    while (parent := file.parent(node)) is not None:
        if isinstance(parent, ast.UnaryOp):
            negated = negated != isinstance(parent.op, ast.Not)
        elif isinstance(parent, ast.BoolOp):
            beside += [each for each in parent.values if each is not node and isinstance(parent.op, ast.And) != negated]
        elif not _is_asked_of(node, parent):
            break
        elif isinstance(parent, ast.Compare):  # torch.cuda.is_available() is False
            negated = negated != (not parent.comparators[0].value)  # type: ignore[attr-defined]
        node = parent
    return node, negated, beside


def _is_asked_of(node: ast.AST, parent: ast.AST) -> bool:
    """Whether the parent asks the same as the node: of each of several tensors, or whether it is True or False."""
    if isinstance(parent, ast.GeneratorExp):
        return parent.elt is node
    if isinstance(parent, ast.IfExp):  # True if ... else False
        values = [getattr(each, "value", None) for each in (parent.body, parent.orelse)]
        return parent.test is node and values == [True, False]
    if isinstance(parent, ast.Call):
        return isinstance(node, ast.GeneratorExp) and getattr(parent.func, "id", "") in ("all", "any")
    if not isinstance(parent, ast.Compare) or len(parent.comparators) != 1 or not isinstance(node, ast.Call):
        return False
    other = parent.comparators[0]
    return (
        isinstance(parent.ops[0], (ast.Is, ast.Eq)) and isinstance(other, ast.Constant) and other.value in (True, False)
    )


def _by_callers(function: ast.AST, beside: list[ast.AST], file: PythonFile, depth: int) -> Iterator[list[ast.AST]]:
    """What is decided by a function that returns the condition: its name says it, or those in this file who call it."""
    name = getattr(function, "name", "")
    kernels = named("triton") if dispatches_kernels(file) else []
    about = [*beside, *kernels, *named(name)]
    is_method = isinstance(file.parent(function), ast.ClassDef)
    calls = [file.parent(each) for each in file.by_name.get(name, ()) if isinstance(each, ast.Name)]
    asked = [each for each in calls if isinstance(each, ast.Call)] if depth and not is_method else []
    found = [list(_decides(call, file, depth - 1)) for call in asked]
    if is_for_cuda(about, file) or not found or not all(found):
        yield about
    else:
        yield from (region for regions in found for region in regions)


def _by_variable(
    statement: ast.Assign | ast.AnnAssign, beside: list[ast.AST], file: PythonFile, depth: int
) -> Iterator[list[ast.AST]]:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    about = [*beside, *named(name)]
    if is_for_cuda(about, file):
        yield about
        return
    uses = file.uses(target) if isinstance(target, ast.Name) else _uses_of_attribute(target, file)
    found = [list(_decides(use, file, depth - 1)) for use in uses]
    known = bool(found) and all(found)
    yield from (region for regions in found for region in regions) if known else [[]]  # []: what may be anything


def _uses_of_attribute(target: ast.expr, file: PythonFile) -> list[ast.expr]:
    """self.use_flash, wherever its class reads it"""
    if not isinstance(target, ast.Attribute) or getattr(target.value, "id", "") != "self":
        return []
    owner = next((each for each in file.ancestors(target) if isinstance(each, ast.ClassDef)), None)
    named = [each for each in file.by_name[target.attr] if isinstance(each.ctx, ast.Load)]
    return [each for each in named if file.source(each) == file.source(target) and owner in set(file.ancestors(each))]


def _only_places(choice: ast.AST | None) -> bool:
    """if not x.is_cuda: x = x.cuda(); if x.is_cuda: x = x.cpu()"""
    body = choice.body if isinstance(choice, ast.If) and not choice.orelse else []
    values = [each.value if isinstance(each, ast.Assign) else None for each in body]
    return bool(body) and all(
        isinstance(each, ast.Call) and getattr(each.func, "attr", "") in ("cuda", "cpu", "to") for each in values
    )


def _is_of_a_tensor(condition: ast.expr) -> bool:
    return isinstance(condition, ast.Attribute) and condition.attr == "is_cuda"


def _taker(choice: ast.AST, file: PythonFile) -> list[ast.AST]:
    """The method that gets what is chosen: io.bind_input(device_id=x.device.index if x.is_cuda else 0)"""
    around = file.parent(choice) if isinstance(choice, ast.IfExp) else None
    call = file.parent(around) if isinstance(around, ast.keyword) else around
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return []
    return [*named(call.func.attr), *named((file.resolve(call.func) or "").split(".")[0])]


def _branch(choice: ast.If | ast.IfExp | ast.While, negated: bool, file: PythonFile) -> list[ast.AST]:
    def listed(part: Sequence[ast.AST] | ast.AST) -> list[ast.AST]:
        return [part] if isinstance(part, ast.AST) else list(part)

    if not negated:
        return [*listed(choice.body), *_collected(choice, file)]
    if isinstance(choice, ast.If) and not choice.orelse and leaves(choice.body[-1]):
        return left_without(choice, file)
    return listed(choice.orelse) or _NOTHING  # if not use_cuda: warn("slow")


def _collected(choice: ast.If | ast.IfExp | ast.While, file: PythonFile) -> Iterator[ast.AST]:
    """What is done with a list that a branch only adds to: if g.is_cuda: on_cuda.append(g); scale_kernel(on_cuda)"""
    statement = choice.body[0] if isinstance(choice, ast.If) and len(choice.body) == 1 else None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "append":
        return
    for use in file.uses(call.func.value) if isinstance(call.func.value, ast.Name) else ():
        parent = file.parent(use)
        if not isinstance(parent, ast.Attribute):  # which is another append
            yield file.statement(use)
