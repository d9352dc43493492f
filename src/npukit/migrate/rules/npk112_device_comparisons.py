"""Extend conditions on CUDA or NCCL to NPUs.

before:           if device.type == "cuda": ...
after (npu):      if device.type == "npu": ...
after (portable): if device.type in ("cuda", "npu"): ...

One of several backends is extended if its branch is written with torch.cuda or NCCL, and stays otherwise. Conditions
that decide about CUDA-only code (an extension, a Triton kernel, the model of a GPU) stay: on an NPU, the other branch
is the right one.
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.dataflow import BACKEND, DEVICE
from npukit.migrate.decision import guards_torch_code, is_kept, why_kept
from npukit.migrate.mentions import first_evidence
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.styles import style_of
from npukit.source.nodes import last_name

rule = Rule(
    "NPK112",
    "device-comparisons",
    words=("cuda", "nccl"),
    fixes=True,
    why="The condition is false on an NPU, so the wrong branch runs.",
    remedy='Compare with both names: device.type in ("cuda", "npu").',
    effort=Effort(15, 5),
)

_NO_MEMORY = "CUDA out of memory"
_WORDS = {"cuda": ("npu", DEVICE), "nccl": ("hccl", BACKEND)}
_TYPE = re.compile(r"torch\.cuda\.(\w*Tensor)")
_TAKE_ANY = (ast.If, ast.While, ast.Assign, ast.Return, ast.keyword)  # need no brackets around `or`


@rule.on(ast.Compare)
def compare(node: ast.Compare, file: PythonFile, goal: Goal) -> Findings:
    if len(node.ops) != 1:
        return
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(left, ast.Subscript) and isinstance(left.slice, ast.Slice):  # device[:4] == "cuda"
        if _word(right, file) and _names(left.value, "cuda", file) and not is_kept(node, file, goal):
            yield rule.finding((file, node), f"{file.source(node)[:60]} checks for CUDA only")
        return
    for constant, other in ((left, right), (right, left)):
        word = _word(constant, file)
        if word is None or not (_names(other, word, file) or guards_torch_code(node, file)):
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
                quote = _quote(file.source(element))
                added = file.insert(file.span(element)[1], f", {quote}{_on_npu(element, word)}{quote}")
                yield from _report(node, word, file, goal, (added,))


@rule.on_call(("startswith", "replace", "removeprefix"))
def startswith(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    first = call.args[0] if call.args else None
    word = str(first.value).rstrip(":") if isinstance(first, ast.Constant) else ""
    if first is None or word not in _WORDS or not _names(func.value, word, file):
        return
    source, new = file.source(first), file.source(first).replace(word, _WORDS[word][0])
    edits = (file.replace(first, f"({source}, {new})"),) if func.attr == "startswith" else ()
    yield from _report(call, word, file, goal, edits)


@rule.on(ast.MatchValue)
def case(node: ast.MatchValue, file: PythonFile, goal: Goal) -> Findings:
    """Report a case of a device: match device.type: case "cuda" """
    word, branch = _word(node.value, file), file.parent(node)
    if word is None or not isinstance(branch, ast.match_case) or first_evidence(branch.body, (), file):
        return
    match = file.parent(branch)
    if isinstance(match, ast.Match) and _names(match.subject, word, file):
        yield from _report(node.value, word, file, goal)


@rule.on(ast.Constant, says=(_NO_MEMORY,))
def out_of_memory(node: ast.Constant, file: PythonFile, goal: Goal) -> Findings:
    compare = file.parent(node)
    if not isinstance(compare, ast.Compare) or compare.left is not node:
        return
    if not isinstance(compare.ops[0], (ast.In, ast.NotIn)) or not str(node.value).startswith(_NO_MEMORY):
        return
    if is_kept(node, file, goal):
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
    """Return the device or backend that an operand names: "cuda", torch.device("cuda"), torch.device("cuda").type"""
    call = node.value if isinstance(node, ast.Attribute) and node.attr == "type" else node
    if isinstance(call, ast.Call) and len(call.args) == 1 and file.resolve(call.func) == "torch.device":
        return _word(call.args[0], file)
    if isinstance(node, ast.Attribute):
        return "nccl" if node.attr == "NCCL" and file.resolve(node) == "torch.distributed.Backend.NCCL" else None
    value = node.value if isinstance(node, ast.Constant) else None
    value = "cuda" if _TYPE.fullmatch(str(value)) else value
    return value if isinstance(value, str) and value in _WORDS else None


def _on_npu(constant: ast.AST, word: str) -> str:
    kind = _TYPE.fullmatch(str(constant.value)) if isinstance(constant, ast.Constant) else None
    return f"torch.npu.{kind[1]}" if kind else _WORDS[word][0]


def _names(node: ast.AST, word: str, file: PythonFile) -> bool:
    """Return whether an expression is a device or backend, judging by its name or by how it was made."""
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
            return _names(node.args[0], word, file) or isinstance(node.args[0], ast.Constant)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "type" and not node.args:  # x.type()
            return True
        method = last_name(node.func)
        if method in ("lower", "get_device") and isinstance(node.func, ast.Attribute):
            return _names(node.func.value, word, file)
        return sink.named(method) and not any(isinstance(argument, ast.Constant) for argument in node.args)
    return False


def _equality(
    node: ast.Compare, constant: ast.AST, other: ast.AST, operator: ast.cmpop, word: str, file: PythonFile
) -> tuple[Edit, ...]:
    source = file.source(constant)
    quote = _quote(source)
    both = f"({source}, {quote}{_on_npu(constant, word)}{quote})"
    if isinstance(constant, ast.Call) or (isinstance(constant, ast.Attribute) and constant.attr == "type"):
        return _compared_devices(node, constant, other, operator, file)
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


def _compared_devices(
    node: ast.Compare, constant: ast.AST, other: ast.AST, operator: ast.cmpop, file: PythonFile
) -> tuple[Edit, ...]:
    """Turn device == torch.device("cuda") into device.type in ("cuda", "npu")."""
    kind = file.source(other) if isinstance(constant, ast.Attribute) else f"{file.source(other)}.type"
    negation = "not " if isinstance(operator, ast.NotEq) else ""
    return (file.replace(node, f'{kind} {negation}in ("cuda", "npu")'),)


def _quote(source: str) -> str:
    return source[-1] if source[-1] in "\"'" else '"'


def _contained(node: ast.Compare, other: ast.AST, operator: ast.cmpop, word: str, file: PythonFile) -> tuple[Edit, ...]:
    """Turn 'cuda' in device into ('cuda' in device or 'npu' in device)."""
    device = file.source(other)
    start, end = file.span(node)
    quote = file.source(node.left)[-1]
    negated = isinstance(operator, ast.NotIn)
    if isinstance(other, ast.Call) and file.resolve(other.func) == "str":
        both = f"({quote}{word}{quote}, {quote}{_WORDS[word][0]}{quote})"
        return (file.replace(node, f"{'not ' if negated else ''}{device}.startswith({both})"),)
    second = f"{quote}{_WORDS[word][0]}{quote} {'not ' if negated else ''}in {device}"
    joined = f" {'and' if negated else 'or'} {second}"
    in_brackets = file.text[start - 1 : start] == "(" and file.text[end : end + 1] == ")"
    parent = file.parent(node)
    if in_brackets or isinstance(parent, _TAKE_ANY) or getattr(parent, "elt", None) is node:
        return (file.insert(end, joined),)
    return (file.insert(start, "("), file.insert(end, f"{joined})"))


def _report(
    node: ast.expr,
    word: str,
    file: PythonFile,
    goal: Goal,
    portable: tuple[Edit, ...] = (),
) -> Findings:
    if is_kept(node, file, goal):
        return
    new = _WORDS[word][0]
    reason = why_kept(node, file)
    edits: tuple[Edit, ...] = ()
    if not reason:
        edits = style_of(goal).choose(portable, _npu(node, word, file), file)
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
        Edit(start + match.start(1), start + match.end(1), _like(match[1], _WORDS[word][0]))
        for match in re.finditer(rf"(?:[\"'.]|\bBackend\.)({word}|{word.upper()})(?![\w-])", source)
    )


def _like(old: str, new: str) -> str:
    return new.upper() if old.isupper() else new
