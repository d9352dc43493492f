"""Extend conditions on CUDA or NCCL to NPUs.

before:           if device.type == "cuda": ...
after (npu):      if device.type == "npu": ...
after (portable): if device.type in ("cuda", "npu"): ...

Conditions that choose among several backends stay as they are. So do conditions that guard CUDA-only code (an
extension, a Triton kernel): on an NPU, the other branch is the right one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Phase, Rule
from npukit.migrate.sinks import BACKEND, DEVICE
from npukit.report import Finding, Severity
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK112",
    "device-comparisons",
    words=("cuda", "nccl"),
    fixes=True,
    phase=Phase.rewrite,
    why="The condition is false on an NPU, so the wrong branch runs.",
    remedy="Compare with the NPU's name as well.",
    effort=Effort(15, 5),
)

_NO_MEMORY = "CUDA out of memory"
_WORDS = {"cuda": ("npu", DEVICE), "nccl": ("hccl", BACKEND)}
_OTHERS = re.compile(r"[\"'](?:xpu|hpu|musa|mlu|tpu|xla|rocm|hip)[\"':]")
_CUDA_ONLY = re.compile(
    r"(?<![\"'.\w])(?!torch\.cuda|use_cuda|is_cuda|has_cuda|cuda_available)\w*(?:cuda|triton|cupy|apex|flash_attn|tensorrt)\w*\s*[.(]"
    r"|[\w.]*_cuda\w*\(|\bimpl\b|_ext\b|_C\.|ProcessGroupNCCL|xformers|\bxops\b",
    re.IGNORECASE,
)


@rule.on(ast.Compare)
def compare(node: ast.Compare, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if len(node.ops) != 1:
        return
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    for constant, other in ((left, right), (right, left)):
        word = _word(constant, file)
        if word is None or not _names(other, word, file):
            continue
        if isinstance(operator, (ast.Eq, ast.NotEq)):
            yield from _report(node, word, file, goal, _equality(node, constant, other, operator, word, file))
        elif isinstance(operator, (ast.In, ast.NotIn)) and constant is left:
            yield from _report(node, word, file, goal, _contained(node, other, operator, word, file))
        return
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List, ast.Set)):
        for element in right.elts:
            word = _word(element, file)
            if word and _names(left, word, file):
                at = file.span(element)[1]
                quote = _quote(file.source(element))
                added = (file.insert(at, f", {quote}{_WORDS[word][0]}{quote}"),)
                yield from _report(node, word, file, goal, added, element)


@rule.on(ast.Call)
def startswith(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    func = call.func
    if isinstance(func, ast.Attribute) and func.attr == "startswith" and len(call.args) == 1:
        word = _word(call.args[0], file) if isinstance(call.args[0], ast.Constant) else None
        if word and _names(func.value, word, file):
            source = file.source(call.args[0])
            both = f"({source}, {source[0]}{_WORDS[word][0]}{source[0]})"
            yield from _report(call, word, file, goal, (file.replace(call.args[0], both),))


@rule.on(ast.MatchValue)
def case(node: ast.MatchValue, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """match device.type: case "cuda" """
    word = _word(node.value, file)
    match = next((each for each in file.ancestors(node) if isinstance(each, ast.Match)), None)
    if word and match and _names(match.subject, word, file):
        source = file.source(node.value)
        both = f"{source} | {_quote(source)}{_WORDS[word][0]}{_quote(source)}"
        yield from _report(node.value, word, file, goal, (file.replace(node.value, both),))


@rule.on(ast.Constant)
def out_of_memory(node: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    parent = file.parent(node)
    is_asked = (
        isinstance(parent, ast.Compare) and parent.left is node and isinstance(parent.ops[0], (ast.In, ast.NotIn))
    )
    if not is_asked or not str(node.value).startswith(_NO_MEMORY) or writing.serves_npu_already(node, file):
        return
    at = file.span(node)[0] + file.source(node).index(_NO_MEMORY)
    yield rule.finding(
        (file, node),
        f"{file.source(node)[:60]} is the message of a CUDA error",
        why='On an NPU the message begins with "NPU out of memory".',
        remedy="Match the part that both messages share.",
        edits=[Edit(at, at + len("CUDA "), "")],
    )


def _word(node: ast.AST, file: PythonFile) -> str | None:
    if isinstance(node, ast.Attribute):
        return "nccl" if node.attr == "NCCL" and file.resolve(node) == "torch.distributed.Backend.NCCL" else None
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and value in _WORDS else None


def _names(node: ast.AST, word: str, file: PythonFile) -> bool:
    """Whether an expression is a device or a backend: by its name, or by what made it."""
    sink = _WORDS[word][1]
    if isinstance(node, ast.Attribute):
        return sink.named(node.attr) or (node.attr == "type" and _names(node.value, word, file))
    if isinstance(node, ast.Name):
        return sink.named(node.id)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and sink.named(str(node.slice.value))
    if isinstance(node, ast.Call):
        if file.resolve(node.func) == "torch.distributed.get_backend":
            return word == "nccl"
        if file.resolve(node.func) in ("str", "torch.device") and len(node.args) == 1:
            return _names(node.args[0], word, file)
        return (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in ("lower", "get_device")
            and (_names(node.func.value, word, file))
        )
    return False


def _equality(
    node: ast.Compare, constant: ast.AST, other: ast.AST, operator: ast.cmpop, word: str, file: PythonFile
) -> tuple[Edit, ...]:
    source = file.source(constant)
    quote = _quote(source)
    both = f"({source}, {quote}{_WORDS[word][0]}{quote})"
    negation = "not " if isinstance(operator, ast.NotEq) else ""
    if constant is node.left:
        return (file.replace(node, f"{file.source(other)} {negation}in {both}"),)
    start = file.span(node.left)[1]
    end = file.span(constant)[0]
    between = file.text[start:end]
    sign = "!=" if negation else "=="
    at = start + between.index(sign)
    word_before = "" if file.text[at - 1].isspace() else " "
    word_after = "" if file.text[at + 2].isspace() else " "
    return (Edit(at, at + 2, f"{word_before}{negation}in{word_after}"), file.replace(constant, both))


def _quote(source: str) -> str:
    return source[-1] if source[-1] in "\"'" else '"'


def _contained(node: ast.Compare, other: ast.AST, operator: ast.cmpop, word: str, file: PythonFile) -> tuple[Edit, ...]:
    """'cuda' in device -> ('cuda' in device or 'npu' in device)"""
    device = file.source(other)
    start, end = file.span(node)
    quote = file.source(node.left)[-1]
    negated = isinstance(operator, ast.NotIn)
    second = f"{quote}{_WORDS[word][0]}{quote} {'not ' if negated else ''}in {device}"
    return (file.insert(start, "("), file.insert(end, f" {'and' if negated else 'or'} {second})"))


def _report(
    node: ast.expr,
    word: str,
    file: PythonFile,
    goal: Goal,
    portable: tuple[Edit, ...],
    constant: ast.AST | None = None,
) -> Iterator[Finding]:
    if writing.serves_npu_already(node, file):
        return
    new = _WORDS[word][0]
    reason = left_alone(node, file)
    edits: tuple[Edit, ...] = ()
    if not reason:
        edits = portable if goal.portable else _npu(node, word, file)
    yield rule.finding(
        (file, node),
        f"{file.source(node)[:60]} checks for CUDA only",
        why=reason or f"An NPU is called {new!r}, so the wrong branch runs.",
        remedy="Check that the other branch is right on an NPU." if reason else f"Compare with {new!r} as well.",
        edits=edits,
        severity=Severity.note if reason else None,
    )


def _npu(node: ast.expr, word: str, file: PythonFile) -> tuple[Edit, ...]:
    start, source = file.span(node)[0], file.source(node)
    return tuple(
        Edit(start + found.start(1), start + found.end(1), _like(found[1], _WORDS[word][0]))
        for found in re.finditer(rf"(?:[\"']|\bBackend\.)({word}|{word.upper()})(?![\w-])", source)
    )


def _like(old: str, new: str) -> str:
    return new.upper() if old.isupper() else new


def left_alone(node: ast.expr, file: PythonFile) -> str:
    """Why a condition is not ours to change; empty when it is."""
    around: ast.AST = node
    for parent in file.ancestors(node):
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp)):
            break
        around = parent
        if isinstance(parent, ast.If):
            break
    chain = file.source(around)
    if _OTHERS.search(chain):
        return "It chooses among several backends, and NPUs are not one of them."
    guarded = chain
    negated = isinstance(file.parent(node), ast.UnaryOp) or (
        isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.NotIn))
    )
    if negated and file.function(node) is not file.tree:  # it leaves early, and what follows is guarded
        guarded = file.source(file.function(node))
    elif isinstance(around, ast.If):
        guarded = file.source(around.test) + "\n".join(file.source(each) for each in around.body)
    if _CUDA_ONLY.search(guarded):
        return "It guards code that is for CUDA only."
    return ""
