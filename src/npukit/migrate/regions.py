"""Find out which conditions hold where a statement runs, and which code a question about CUDA decides.

    if HAS_TRITON: <1>             # 1: HAS_TRITON holds, as it does after `assert HAS_TRITON`
    if not ready: return           # 2: ready holds, as it does in the `else` branch
    <2>
    @pytest.mark.skipif(no_gpu)    # 3: no_gpu does not hold
    def test_x(): <3>

One pass over a file records the conditions for each statement. A question about CUDA, such as
torch.cuda.is_available(), x.is_cuda or device.type == "cuda", decides regions: its branch, the code after an early exit
or an assertion, the tests that a mark skips, and whatever is decided by a variable or function that holds the answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npukit.migrate.kernels import Definition
from npukit.migrate.mentions import first_evidence, imports_kernels
from npukit.migrate.patches import is_test_file
from npukit.migrate.presence import SKIPS, is_exit
from npukit.migrate.questions import is_negated
from npukit.source import PythonFile, per_file

Condition = tuple[ast.AST, bool]  # an expression, an import or a case, and whether it holds
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SETUPS = ("setUp", "setUpClass", "setup_method", "setup_class")
_REFUSAL = re.compile(r"[Kk]ernel|CUDA tensor|NVML|[Tt]riton|TileLang|cuDNN|cuBLAS|TensorRT|[Ff][Pp]8|[Qq]uantiz")
_STREAMS = re.compile(r"\btorch\.cuda\.(?:current_stream|stream)\(")  # torch's own work on a device, not a kernel's


@dataclass(frozen=True)
class Region:
    """Code that runs only if a question about CUDA is answered with "yes".

    Without nodes and texts it may be anything. `on_cpu` marks code that runs on the CPU only, or only prints a warning.
    """

    nodes: tuple[ast.AST, ...] = ()
    texts: tuple[str, ...] = ()  # names and messages that describe it
    has_kernels: bool = False  # whether the question is asked on behalf of the file's kernels
    on_cpu: bool = False


@per_file
def conditions(file: PythonFile) -> dict[ast.AST, tuple[Condition, ...]]:
    """Return the conditions that hold at each statement of a file."""
    by_statement: dict[ast.AST, tuple[Condition, ...]] = {}
    _record_conditions(file.tree.body, (), by_statement)
    return by_statement


def _record_conditions(
    block: Sequence[ast.stmt], held: tuple[Condition, ...], by_statement: dict[ast.AST, tuple[Condition, ...]]
) -> tuple[Condition, ...]:
    """Record the conditions that hold at each statement of a block, and return those that hold after it."""
    for statement in block:
        by_statement[statement] = held
        if isinstance(statement, (ast.If, ast.While)):
            _record_conditions(statement.body, (*held, (statement.test, True)), by_statement)
            _record_conditions(statement.orelse, (*held, (statement.test, False)), by_statement)
            if isinstance(statement, ast.If) and is_exit(statement.body[-1]) and not statement.orelse:
                held = (*held, (statement.test, False))
            elif isinstance(statement, ast.If) and statement.orelse and is_exit(statement.orelse[-1]):
                held = (*held, (statement.test, True))
        elif isinstance(statement, ast.Assert):
            held = (*held, (statement.test, True))
        elif isinstance(statement, ast.Try):
            behind = _record_conditions(statement.body, held, by_statement)
            for handler in statement.handlers:
                _record_conditions(handler.body, held, by_statement)
            _record_conditions(statement.orelse, behind, by_statement)
            _record_conditions(statement.finalbody, held, by_statement)
            held = behind if all(is_exit(clause.body[-1]) for clause in statement.handlers) else held
        elif isinstance(statement, Definition):
            _record_conditions(statement.body, (*held, *_conditions_of_marks(statement)), by_statement)
        elif isinstance(statement, ast.Match):
            for case in statement.cases:
                _record_conditions(case.body, (*held, (case.pattern, True)), by_statement)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            held = (*held, (statement, True))
        else:
            for name in ("body", "orelse"):
                _record_conditions(getattr(statement, name, ()), held, by_statement)
    return held


def _conditions_of_marks(test: Definition) -> Iterator[Condition]:
    """Yield the conditions under which a test is not skipped, such as `not no_gpu` for @pytest.mark.skipif(no_gpu)."""
    for mark in test.decorator_list:
        kind = getattr(mark.func, "attr", "") if isinstance(mark, ast.Call) and mark.args else ""
        if kind in SKIPS:
            yield mark.args[0], kind == "skipUnless"  # type: ignore[attr-defined]


def conditions_at(node: ast.AST, file: PythonFile) -> Iterator[Condition]:
    """Yield the conditions that hold at a node, innermost first, including those of the expression around it."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(child, ast.stmt):
            break
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            yield parent.test, child is parent.body
        elif isinstance(parent, ast.BoolOp) and child in parent.values:
            before = parent.values[: parent.values.index(child)]
            yield from ((operand, isinstance(parent.op, ast.And)) for operand in before)
        elif isinstance(parent, ast.Dict) and child in parent.values and "is_available" in file.source(child)[-16:]:
            key = parent.keys[parent.values.index(child)]
            if isinstance(key, ast.Constant) and key.value == "cuda":  # {"cuda": torch.cuda.is_available()}
                yield key, True
        child = parent
    if isinstance(child, ast.stmt):
        yield from reversed(conditions(file).get(child, ()))


def _asks_for_cpu(condition: ast.AST) -> bool:
    """Return whether a condition asks for the CPU, such as device.type == "cpu"."""
    sides = (condition.left, *condition.comparators) if isinstance(condition, ast.Compare) else ()
    return any(getattr(side, "value", None) == "cpu" for side in sides) and not is_negated(condition)


def regions_decided_by(question: ast.expr, file: PythonFile, depth: int = 2) -> list[Region]:
    """Return the code that runs only if a question is answered with "yes", one region for each place that asks."""
    node, negated, also_required = _widest_question(question, file)
    if any(_asks_for_cpu(condition) for condition in also_required):
        return [Region(on_cpu=True)]
    parent = file.parent(node)
    if isinstance(parent, ast.If) and parent.test is node and _is_answer(parent, file):
        return _by_callers(file.function(parent), [*also_required, *code_behind_exit(parent, file)[0]], file, depth)
    kernels = _is_about_kernels(question, parent, file)
    if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and parent.test is node:
        return [_region_of_branch(parent, negated, also_required, kernels, file)]
    if isinstance(parent, ast.Call) and (tests := _regions_skipped_by(parent, file)):
        need_cuda = [region for region in tests if first_evidence((*also_required, *region.nodes), region.texts, file)]
        nodes = [part for region in tests for part in region.nodes]
        texts = [text for region in tests for text in region.texts]  # one mark for several tests: the majority decides
        return [Region((*also_required, *nodes), tuple(texts)) if 2 * len(need_cuda) > len(tests) else Region()]
    if isinstance(parent, ast.Assert):
        return [Region((*also_required, *statements_after(parent, file)), has_kernels=kernels)]
    if isinstance(parent, ast.Return):
        return _by_callers(file.function(parent), also_required, file, depth)
    if isinstance(parent, (ast.Assign, ast.AnnAssign)) and depth:
        return _by_variable(parent, also_required, file, depth)
    if isinstance(parent, ast.keyword) and (call := file.parent(parent)):  # faiss.Kmeans(d, k, gpu=use_cuda)
        receiver = _receiver_names(call, file)
        return (
            [Region((*also_required, call), receiver)]
            if receiver
            else [Region(tuple(also_required))]
            if also_required
            else []
        )
    return [Region(tuple(also_required))] if also_required else []


def _widest_question(question: ast.expr, file: PythonFile) -> tuple[ast.AST, bool, list[ast.AST]]:
    """Return the widest expression that asks the same question, whether it is negated, and what else must hold."""
    negated = is_negated(question)
    node: ast.AST = question
    also_required: list[ast.AST] = []
    while (parent := file.parent(node)) is not None:
        if isinstance(parent, ast.UnaryOp):
            negated = negated != isinstance(parent.op, ast.Not)
        elif isinstance(parent, ast.BoolOp):
            also_required += [
                part for part in parent.values if part is not node and isinstance(parent.op, ast.And) != negated
            ]
        elif not _asks_the_same(node, parent):
            break
        node = parent
    return node, negated, also_required


def _asks_the_same(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether a parent asks the same question as a node: for each of several tensors, or as True and False."""
    if isinstance(parent, ast.GeneratorExp):
        return parent.elt is node
    if isinstance(parent, ast.IfExp):  # True if ... else False
        values = [getattr(branch, "value", None) for branch in (parent.body, parent.orelse)]
        return parent.test is node and values == [True, False]
    is_call = isinstance(parent, ast.Call) and isinstance(node, ast.GeneratorExp)
    return is_call and getattr(parent.func, "id", "") in ("all", "any")  # type: ignore[attr-defined]


def _is_about_kernels(question: ast.expr, parent: ast.AST | None, file: PythonFile) -> bool:
    """Return whether a tensor's device matters to kernels of the file: if x.is_cuda: return ours.scan(x)"""
    if not isinstance(question, ast.Attribute) or question.attr != "is_cuda" or _only_places(parent):
        return False
    is_expected = isinstance(parent, ast.Assert) and getattr(file.function(parent), "name", "").startswith("test")
    return not is_expected and not _STREAMS.search(file.source(file.function(question))) and imports_kernels(file)


def _only_places(choice: ast.AST | None) -> bool:
    """Return whether a branch only moves a tensor: if not x.is_cuda: x = x.cuda()"""
    body: Sequence[ast.AST] = choice.body if isinstance(choice, ast.If) and not choice.orelse else []
    values = [statement.value if isinstance(statement, ast.Assign) else None for statement in body]
    if isinstance(choice, ast.IfExp):  # x.to("cpu") if x.is_cuda else x
        body = values = [choice.body]  # type: ignore[assignment]
    return bool(body) and all(
        isinstance(value, ast.Call) and getattr(value.func, "attr", "") in ("cuda", "cpu", "to") for value in values
    )


def _is_answer(choice: ast.If, file: PythonFile) -> bool:
    """Return whether a function only returns the answer: if x.device.type != "cuda": return False; return True"""
    rest = choice.orelse or statements_after(choice, file)
    returned = [statement.value for statement in (choice.body[0], *rest[:1]) if isinstance(statement, ast.Return)]
    return {getattr(value, "value", None) for value in returned} == {True, False}


def _region_of_branch(
    choice: ast.If | ast.IfExp | ast.While, negated: bool, also_required: list[ast.AST], kernels: bool, file: PythonFile
) -> Region:
    receiver = _receiver_names(file.parent(choice), file) if isinstance(choice, ast.IfExp) else ()
    body = choice.body if isinstance(choice.body, list) else [choice.body]
    orelse = choice.orelse if isinstance(choice.orelse, list) else [choice.orelse]
    kernels = kernels or _refuses_for_kernels(body)
    if not negated:
        return Region((*also_required, *body), receiver, kernels)
    refusal = body if kernels and isinstance(choice, ast.If) else []
    if isinstance(choice, ast.If) and not choice.orelse and is_exit(choice.body[-1]):
        behind, topics = code_behind_exit(choice, file)
        return Region((*also_required, *refusal, *behind), (*receiver, *topics), kernels)
    return Region(
        (*also_required, *refusal, *orelse), receiver, kernels, on_cpu=not orelse
    )  # if not use_cuda: warn("slow")


def _receiver_names(call: ast.AST | None, file: PythonFile) -> tuple[str, ...]:
    """Return the names of the function that receives a value: bind_input in io.bind_input(device_id=...)"""
    call = file.parent(call) if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return ()
    return call.func.attr, (file.resolve(call.func) or "").split(".")[0]


def _refuses_for_kernels(body: list[ast.stmt] | list[ast.expr]) -> bool:
    """Return whether a branch rejects tensors for a kernel: raise ValueError("Only CUDA tensors are supported")"""
    last = body[-1]
    texts = (
        (node.value for node in ast.walk(last) if isinstance(node, ast.Constant))
        if isinstance(last, (ast.Raise, ast.Expr))
        else ()
    )
    return any(isinstance(text, str) and _REFUSAL.search(text) for text in texts)


def code_behind_exit(choice: ast.If, file: PythonFile) -> tuple[list[ast.AST], list[str]]:
    """Return the code that runs only if an early exit is not taken, with what must hold to get there, and its names."""
    exits = (condition for condition, holds in conditions(file).get(choice, ()) if not holds)
    required = [part for condition in exits for part in _required_by_exit(condition)]
    topics = [getattr(file.function(choice), "name", ""), *_names_of_test(file)]
    return [*required, *statements_after(choice, file)], topics


def _names_of_test(file: PythonFile) -> list[str]:
    """Return the names of a test file and its folder, which tell what it tests: test_fp8.py, triton/test_norm.py"""
    return [file.path.stem, file.path.parent.name] if is_test_file(file.path) else []


def _required_by_exit(exit_test: ast.AST) -> Iterator[ast.AST]:
    """Yield what must hold after an early exit: HAVE_TE after `if not enabled or not HAVE_TE: return`"""
    for condition in (
        exit_test.values if isinstance(exit_test, ast.BoolOp) and isinstance(exit_test.op, ast.Or) else [exit_test]
    ):
        if isinstance(condition, ast.UnaryOp) and isinstance(condition.op, ast.Not):
            yield condition.operand


def statements_after(statement: ast.stmt, file: PythonFile) -> list[ast.AST]:
    """Return the statements that follow a statement in the same block."""
    block = file.block_of(statement)
    return [*block[block.index(statement) + 1 :]]


def _regions_skipped_by(call: ast.Call, file: PythonFile) -> list[Region]:
    """Return a region for each test that a mark skips: needs_cuda = pytest.mark.skipif(...)"""
    if getattr(call.func, "attr", "") not in SKIPS:
        return []
    given = (*call.args[1:], *(keyword.value for keyword in call.keywords))
    topics = [str(node.value) for node in given if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    topics += _names_of_test(file)
    return [region for test in _tests(call, file) for region in _methods(test, topics, file)]


def _tests(call: ast.Call, file: PythonFile) -> Iterator[Definition]:
    """Yield the tests that a mark decorates, directly or through a variable."""
    around = file.parent(call)
    if isinstance(around, ast.List):  # pytestmark = [pytest.mark.skipif(...)]
        around = file.parent(around)
    if isinstance(around, Definition) and call in around.decorator_list:
        yield around
    target = around.targets[0] if isinstance(around, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return
    if target.id == "pytestmark":
        scope = file.parent(around) if around else None
        tests = (statement for statement in getattr(scope, "body", ()) if isinstance(statement, Definition))
        yield from (definition for definition in tests if definition.name.lower().startswith("test"))
    for use in file.uses(target):
        test = file.parent(use)
        if isinstance(test, Definition) and use in test.decorator_list:
            yield test


def _methods(test: Definition, topics: list[str], file: PythonFile) -> Iterator[Region]:
    owner = test if isinstance(test, ast.ClassDef) else file.parent(test)
    methods = [node for node in owner.body if isinstance(node, _Function)] if isinstance(owner, ast.ClassDef) else []
    setups = [part for node in methods if node.name in _SETUPS for part in node.body]
    tests = [node for node in methods if node.name.startswith("test")] if isinstance(test, ast.ClassDef) else [test]
    for case in tests:
        called = {getattr(node.func, "attr", "") for node in ast.walk(case) if isinstance(node, ast.Call)}
        helpers = [part for method in methods if method.name in called for part in method.body]
        marks = [mark for mark, _ in _conditions_of_marks(test)]
        yield Region((*marks, *setups, *case.body, *helpers), (*topics, test.name, case.name))


def _by_callers(function: ast.AST, also_required: list[ast.AST], file: PythonFile, depth: int) -> list[Region]:
    """Return the regions decided by a function that returns the answer: by its name, or by its callers in this file."""
    name = getattr(function, "name", "")
    topics = Region(tuple(also_required), (name,), has_kernels=imports_kernels(file))
    if topics.has_kernels or first_evidence(topics.nodes, topics.texts, file):
        return [topics]
    is_method = isinstance(file.parent(function), ast.ClassDef)
    calls = [file.parent(use) for use in file.by_name.get(name, ()) if isinstance(use, ast.Name)]
    asked = [call for call in calls if isinstance(call, ast.Call)] if depth and not is_method else []
    by_call = [regions_decided_by(call, file, depth - 1) for call in asked]
    return [region for regions in by_call for region in regions] if by_call and all(by_call) else [topics]


def _by_variable(
    statement: ast.Assign | ast.AnnAssign, also_required: list[ast.AST], file: PythonFile, depth: int
) -> list[Region]:
    """Return the regions decided by a variable or attribute that holds the answer."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    if first_evidence(also_required, (name,), file):
        return [Region(tuple(also_required), (name,))]
    uses = file.uses(target) if isinstance(target, ast.Name) else _uses_of_attribute(target, file)
    by_use = [regions_decided_by(use, file, depth - 1) for use in uses]
    return [region for regions in by_use for region in regions] if by_use and all(by_use) else [Region()]


def _uses_of_attribute(target: ast.expr, file: PythonFile) -> list[ast.expr]:
    """Return where a class reads an attribute such as self.use_flash."""
    if not isinstance(target, ast.Attribute) or getattr(target.value, "id", "") != "self":
        return []
    owner = file.class_around(target)
    reads = [read for read in file.by_name[target.attr] if isinstance(read.ctx, ast.Load)]
    return [read for read in reads if file.source(read) == file.source(target) and owner in set(file.ancestors(read))]
