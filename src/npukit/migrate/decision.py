"""Decide whether a piece of code is migrated or kept.

Code is kept if it only ever runs on CUDA machines, or if it supports NPUs already:

    if torch.cuda.is_available(): major, _ = torch.cuda.get_device_capability()    # asks for the model of a GPU
    HAS_TRITON = torch.cuda.is_available() and find_spec("triton")                 # asks for a CUDA library
    if HAVE_TE: x = x.cuda()                                                       # runs only with such a library

Everything else is migrated, such as `if torch.cuda.is_available(): model.cuda()`. A question such as
torch.cuda.is_available() is kept if the code that it decides about shows evidence of CUDA, and that code with it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from npukit.facts.target import Target
from npukit.facts.versions import key
from npukit.migrate.cuda_files import evidence_for_file
from npukit.migrate.dataflow import imports_own_devices, library_without_npus
from npukit.migrate.definitions import cuda_only_definitions, cuda_only_exports, is_test_or_benchmark
from npukit.migrate.evidence import Evidence, evidence_in_call
from npukit.migrate.goal import Goal
from npukit.migrate.kernels import Definition, library_needed_by, unconditional_nodes
from npukit.migrate.mentions import evidence_in_node, first_evidence
from npukit.migrate.presence import is_presence_check, library_missing_where, library_present_where
from npukit.migrate.questions import cuda_questions, is_negated
from npukit.migrate.regions import Condition, Region, conditions, conditions_at, regions_decided_by
from npukit.migrate.requirements import allowed_torch
from npukit.migrate.styles import style_of
from npukit.source import PythonFile, per_file
from npukit.source.cache import per_project

_OTHERS = re.compile(r"[\"'](?:xpu|hpu|musa|mlu|tpu|xla|rocm|hip|nvshmem|nixl)[\"':]")
_VERSION = re.compile(r"[\"'](\d+\.\d+)")
_ASKS_TORCH = re.compile(r"\bis_torch_(?:min_version|version_(?:at_least|ge))\b")
_SEVERAL = "It chooses among several backends, and NPUs are not one of them."
_PATCHED = re.compile(r"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*torch\.cuda\b")
_NPU = re.compile(r"ASCEND_|(?<![A-Za-z])npu(?![a-z])|hccl|transfer_to_npu", re.IGNORECASE)
_NPU_QUICKLY = re.compile(
    r"npu(?![a-z])(?<![a-z]npu)"
)  # for lower-case text; starting with letters makes the search fast
# Code that asks for NPUs chooses among devices itself. Neither style writes these names.
_CHOOSES_NPU = re.compile(
    r"\b(?:(?:is_)?(?:torch_|ascend_)?npu_available|(?:has|is|use)_npu)\b|[\"']ascend[\"']", re.IGNORECASE
)


def is_kept(node: ast.AST, file: PythonFile, goal: Goal) -> bool:
    """Return whether code is left unchanged because it runs on CUDA only, supports NPUs already, or is harmless."""
    if style_of(goal).keeps(node, file, goal):
        return True
    return cuda_only_evidence(node, file) is not None or _supports_npus(node, file)


def cuda_only_evidence(node: ast.AST, file: PythonFile) -> Evidence | None:
    """Return the evidence that a node only ever runs on CUDA: in its file, its function or class, or a condition."""
    return (
        evidence_for_file(file)
        or _replaces_cuda(node, file)
        or _enclosing_evidence(node, file)
        or _for_other_devices(node, file)
    )


def _for_other_devices(node: ast.AST, file: PythonFile) -> Evidence | None:
    """Return evidence if a device is only passed to libraries that do not know NPUs.

    device = "cuda"
    model = WhisperModel(path, device=device)
    """
    if not imports_own_devices(file) or not isinstance(node, ast.expr):
        return None
    statement = file.statement(node)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    uses = [file.parent(use) for use in file.uses(target)] if isinstance(target, ast.Name) else []
    takers = [file.parent(use) if isinstance(use, ast.keyword) else use for use in uses]
    libraries = [library_without_npus(taker, file) if isinstance(taker, ast.Call) else "" for taker in takers]
    return Evidence("library", libraries[0], file.place(node)) if libraries and all(libraries) else None


def _enclosing_evidence(node: ast.AST, file: PythonFile) -> Evidence | None:
    """Return evidence from the functions and classes around a node, or from a condition that holds there."""
    decided, defined = _kept_code(file), cuda_only_definitions(file)
    for outer in (node, *file.ancestors(node)):
        if evidence := decided.get(outer) or defined.get(outer):
            return evidence
    return next(
        filter(None, (_evidence_in_condition(file, condition) for condition in conditions_at(node, file))), None
    )


def why_kept(question: ast.expr, file: PythonFile) -> str:
    """Say why a question about CUDA is left unchanged. The answer is empty if the question is migrated."""
    if question in _kept_questions(file):
        return f"What it decides is for CUDA only: {_kept_questions(file)[question].sentence}"
    around = _enclosing_branch(question, file)
    names_no_device = isinstance(question, ast.Call) and not question.args
    is_asserted = isinstance(file.parent(around), ast.Assert)  # x.is_cuda or x.device.type == "xla"
    several = not (names_no_device or is_asserted) and _OTHERS.search(file.source(around))
    return _SEVERAL if several and not guards_torch_code(question, file) else ""


def _enclosing_branch(question: ast.expr, file: PythonFile) -> ast.AST:
    """Return the whole `if` statement or conditional expression that a question decides."""
    around: ast.AST = question
    for parent in file.ancestors(question):
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp)):
            break
        around = parent
        if isinstance(parent, ast.If):
            break
    return around


def guards_torch_code(question: ast.expr, file: PythonFile) -> bool:
    """Return whether the branch for "yes" is written with torch.cuda or nccl, so that it is migrated with its question.

    >>> guards_torch_code(test, file)  # if kind == "cuda": torch.cuda.synchronize()
    True
    """
    test, choice = question, file.parent(question)
    if isinstance(choice, ast.BoolOp) and isinstance(choice.op, ast.And):
        test, choice = choice, file.parent(choice)
    if not isinstance(choice, (ast.If, ast.IfExp)) or choice.test is not test or is_negated(question):
        return False
    body = choice.body if isinstance(choice.body, list) else [choice.body]
    return any(
        getattr(node, "attr", "") == "cuda" or getattr(node, "value", "") == "nccl"
        for statement in body
        for node in ast.walk(statement)
    )


@per_file
def _kept_questions(file: PythonFile) -> dict[ast.expr, Evidence]:
    """Return the questions about CUDA that are left unchanged, with the evidence for each."""
    stay: dict[ast.expr, Evidence] = {}
    for question in cuda_questions(file):
        regions = regions_decided_by(question, file)
        if not any(_runs_on_any_device(region, file) for region in regions):
            candidates = (_evidence_in_region(region, question, file) for region in regions)
            if evidence := next(filter(None, candidates), None):
                stay[question] = evidence
    return stay


def _evidence_in_region(region: Region, question: ast.expr, file: PythonFile) -> Evidence | None:
    if region.has_kernels:
        return Evidence("kernel", "a kernel of this file", file.place(question))
    return first_evidence(region.nodes, region.texts, file)


def _runs_on_any_device(region: Region, file: PythonFile) -> bool:
    """Return whether a region does something that NPUs can do, such as moving a tensor. If empty, it may do
    anything.
    """
    if region.has_kernels or region.on_cpu:
        return False
    if not region.nodes and not region.texts:
        return True
    nodes = [node for part in region.nodes for node in unconditional_nodes(part)]
    if first_evidence((), region.texts, file) or any(evidence_in_node(node, file) for node in nodes):
        return False
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("cuda", "to") and _moves(node, file))
        or (isinstance(node, ast.Constant) and _is_device(node, file))
        for node in nodes
    )


def _is_device(node: ast.Constant, file: PythonFile) -> bool:
    """Return whether a string is a device. In `impl == "cuda"` it is compared with something else."""
    return str(node.value).startswith("cuda") and not isinstance(file.parent(node), ast.Compare)


def _moves(node: ast.Attribute, file: PythonFile) -> bool:
    """Return whether a method moves to any device, unlike a project's own cuda() and `to(memory_format=...)`."""
    call = file.parent(node)
    if not isinstance(call, ast.Call):
        return True
    sets_layout = not call.args and [keyword.arg for keyword in call.keywords] == ["memory_format"]
    return not sets_layout and not evidence_in_call(call, file)


@per_file
def _kept_code(file: PythonFile) -> dict[ast.AST, Evidence]:
    """Return the code that runs only if a kept question is answered with "yes", and its helpers."""
    decided = {
        node: evidence
        for question, evidence in _kept_questions(file).items()
        for region in regions_decided_by(question, file)
        for node in region.nodes
    }
    known = set(decided) | set(cuda_only_definitions(file))
    while helpers := set(_helpers_of_kept_code(known, file)) - known:
        decided |= {node: Evidence("name", getattr(node, "name", "a constant"), file.place(node)) for node in helpers}
        known |= helpers
    return decided


def _helpers_of_kept_code(known: set[ast.AST], file: PythonFile) -> Iterator[ast.AST]:
    """Yield the private functions, classes and constants that only kept code uses; in tests also public ones."""
    prefix = "" if is_test_or_benchmark(file) else "_"
    for part in file.tree.body if known else ():
        targets = part.targets if isinstance(part, ast.Assign) else ()
        name = part.name if isinstance(part, Definition) else getattr(targets[0], "id", "") if targets else ""
        if name and name.startswith(prefix) and not name.startswith("test"):
            uses = [use for use in file.by_name.get(name, ()) if isinstance(use, ast.Name)]
            read = [use for use in uses if isinstance(use.ctx, ast.Load)]
            if read and all(any(ancestor in known for ancestor in file.ancestors(use)) for use in read):
                yield part


@per_file
def _evidence_in_condition(file: PythonFile, condition: Condition) -> Evidence | None:
    """Return the evidence in a condition that holds, such as an installed CUDA library or an outdated torch."""
    expression, holds = condition
    if isinstance(expression, (ast.Import, ast.ImportFrom)):
        library = library_needed_by(expression)
        return (
            Evidence("library", library.name, file.place(expression)) if library and library.name != "Triton" else None
        )
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        return _evidence_in_condition(file, (expression.operand, not holds))
    if isinstance(expression, ast.BoolOp) and isinstance(expression.op, ast.And) == holds:
        return next(
            filter(None, (_evidence_in_condition(file, (operand, holds)) for operand in expression.values)), None
        )
    if isinstance(expression, ast.Constant) and expression.value == "cuda":
        return Evidence("name", "an entry called cuda", file.place(expression))
    if not isinstance(expression, ast.expr):
        return None
    if holds and isinstance(expression, ast.Attribute) and file.resolve(expression) == "torch.version.cuda":
        return Evidence("card", "torch.version.cuda", file.place(expression))
    if _is_for_older_torch(expression, holds, file):
        return Evidence("name", "an older torch", file.place(expression))
    library_name = (
        (library_present_where if holds else library_missing_where)(expression, file.names)
        if is_presence_check(expression, file)
        else ""
    )
    return Evidence("library", library_name, file.place(expression)) if library_name else None


def _is_for_older_torch(expression: ast.expr, holds: bool, file: PythonFile) -> bool:
    """Return whether a condition needs a torch older than the project's: version.parse(torch.__version__) < "2.4" """
    if isinstance(expression, ast.Compare) and "torch.__version__" in file.source(expression.left):
        is_older = isinstance(expression.ops[0], (ast.Lt, ast.LtE)) == holds
        version = _VERSION.search(file.source(expression.comparators[0]))
    elif isinstance(expression, ast.Call) and _ASKS_TORCH.search(file.source(expression.func)):
        is_older, version = not holds, _VERSION.search(file.source(expression))
    else:
        return False
    return is_older and version is not None and key(version[1]) <= key(_torch_of(file.names.root))


@per_project(maxsize=8)
def _torch_of(root: Path | None) -> str:
    return (allowed_torch(root)[1] if root else "") or Target.of().torch


def _replaces_cuda(node: ast.AST, file: PythonFile) -> Evidence | None:
    """Return evidence if the code around a node replaces part of torch.cuda, as a test does with
    patch("torch.cuda.is_available").
    """
    if not _patches_cuda(file):
        return None
    around = file.function(node)
    parts = (*getattr(around, "decorator_list", ()), around) if around is not file.tree else ()
    patched = any(_PATCHED.search(file.source(part)) for part in parts)
    return Evidence("name", "a replacement of torch.cuda", file.place(node)) if patched else None


@per_file
def _patches_cuda(file: PythonFile) -> bool:
    may_patch = file.has("torch.cuda") and (file.has("patch") or file.has("setattr"))
    return may_patch and _PATCHED.search(file.text) is not None


@per_file
def cuda_only_parts(file: PythonFile) -> dict[ast.AST, Evidence]:
    """Return the outermost functions, classes and tests that mention CUDA and are kept, for the report."""
    defined = cuda_only_definitions(file)
    cuda_only_exports(file.path, file.names.root, 1)  # cache this now, since tests that come later will ask
    imports = (statement for statement in file.names.imports if isinstance(statement, ast.ImportFrom))
    torchs = (statement for statement in imports if (statement.module or "").startswith("torch.cuda"))
    names = (alias.asname or alias.name for statement in torchs for alias in statement.names)
    cuda_names = re.compile("|".join(["(?i:cuda)", *(rf"\b{re.escape(name)}\b" for name in names)]))
    chosen = (statement for choice in file.tree.body if isinstance(choice, ast.If) for statement in choice.body)
    optional = {
        part: evidence
        for part in chosen
        if isinstance(part, Definition) and (evidence := cuda_only_evidence(part, file))
    }
    outermost = {part: evidence for part, evidence in defined.items() if file.parent(part) not in defined} | optional
    return {part: evidence for part, evidence in outermost.items() if cuda_names.search(file.source(part))}


def is_cuda_only_line(line: int, file: PythonFile) -> bool:
    """Return whether the code on a line runs on CUDA only although its file as a whole does not."""
    if evidence_for_file(file):
        return False
    around = (statement for statement in conditions(file) if statement.lineno <= line <= (statement.end_lineno or line))  # type: ignore[attr-defined]
    inner = max(around, key=lambda statement: statement.lineno, default=None)  # type: ignore[attr-defined]
    return inner is not None and _enclosing_evidence(inner, file) is not None


@per_file
def _mentions_npus(file: PythonFile) -> bool:
    lowered = file.text.lower()
    return "hccl" in lowered or "ascend" in lowered or bool(_NPU_QUICKLY.search(lowered))


def _supports_npus(node: ast.AST, file: PythonFile) -> bool:
    """Return whether the function, class or statement around a node mentions NPUs, or the file asks for them."""
    if not _mentions_npus(file):
        return False
    around: ast.AST = file.function(node)
    if around is file.tree:
        around = node
        for parent in file.ancestors(node):
            if parent is file.tree:
                break
            around = parent
    if _CHOOSES_NPU.search(file.text):
        return True
    start = min((file.span(mark)[0] for mark in getattr(around, "decorator_list", ())), default=file.span(around)[0])
    return _NPU.search(file.text, start, file.span(around)[1]) is not None
