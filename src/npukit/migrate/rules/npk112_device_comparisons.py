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
from collections.abc import Iterator

from npukit.migrate.decision import decides_about_torch, stays, why_left
from npukit.migrate.goal import Goal
from npukit.migrate.mentions import first
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.sinks import BACKEND, DEVICE
from npukit.migrate.styles import style_of
from npukit.report import Finding, Severity
from npukit.source import Edit, PythonFile

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
_TAKE_ANY = (ast.If, ast.While, ast.Assign, ast.Return, ast.keyword)  # need no brackets around `or`
_TYPE = re.compile(r"torch\.cuda\.(\w*Tensor)")


@rule.on(ast.Compare)
def compare(node: ast.Compare, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if len(node.ops) != 1:
        return
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if (
        isinstance(operator, (ast.Eq, ast.NotEq))
        and isinstance(left, ast.Subscript)
        and _is_start_of_device(left, file)
    ):
        yield from _report(node, "cuda", file, goal, _start(node, left, operator, file))
        return
    for constant, other in ((left, right), (right, left)):
        word = _word(constant, file)
        if word is None or not (_names(other, word, file) or decides_about_torch(node, file)):
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
                kind = _TYPE.fullmatch(str(element.value)) if isinstance(element, ast.Constant) else None
                new = f"torch.npu.{kind[1]}" if kind else _WORDS[word][0]
                added = (file.insert(at, f", {quote}{new}{quote}"),)
                yield from _report(node, word, file, goal, added)


@rule.on(ast.Module)
def pickled(module: ast.Module, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """b"cuda" in buffer: the device of a pickled tensor"""
    for node in file.by_type.get(ast.Compare, ()):
        looks = isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and node.left.value == b"cuda"
        if looks and not stays(node, file, goal):
            yield rule.finding((file, node), f"{file.source(node)[:60]} looks for CUDA only")


@rule.on_call(("startswith", "replace", "removeprefix"))
def startswith(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    first = call.args[0] if call.args else None
    word = str(first.value).rstrip(":") if isinstance(first, ast.Constant) else ""
    if first is None or word not in _WORDS or not _names(func.value, word, file):
        return
    source, new = file.source(first), file.source(first).replace(word, _WORDS[word][0])
    edits: tuple[Edit, ...] = (file.replace(first, f"({source}, {new})"),)
    if func.attr != "startswith":  # str(device).replace("cuda:", "")
        rest = file.text[file.span(first)[1] : file.span(call)[1]]
        edits = (file.insert(file.span(call)[1], f".{func.attr}({new}{rest}"),)
    yield from _report(call, word, file, goal, edits)


@rule.on(ast.Dict)
def table(node: ast.Dict, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """{"cuda": "nccl", "cpu": "gloo"}[device.type]"""
    lookup = file.parent(node)
    if not isinstance(lookup, ast.Subscript) or lookup.value is not node or not _names(lookup.slice, "cuda", file):
        return
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and key.value == "cuda":
            source = file.source(value).replace("nccl", "hccl")
            twin = file.insert(file.span(value)[1], f", {file.source(key).replace('cuda', 'npu')}: {source}")
            yield from _report(key, "cuda", file, goal, (twin,))


@rule.on(ast.Constant, says=("cuda",))
def entry(key: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """memory["cpu"] = 0; memory["cuda"] = 0: a table without an entry for NPUs"""
    node = file.parent(key)
    if key.value != "cuda" or not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Store):
        return
    cpus = file.source(node).replace("cuda", "cpu")
    if f"{cpus} = " in file.text and not stays(node, file, goal):
        what = f"{file.source(node)[:60]} has no counterpart for NPUs"
        why = "What is looked up by the kind of a device is not found."
        yield rule.finding((file, node), what, why=why, remedy="Add an entry for NPUs.", severity=Severity.warning)


@rule.on(ast.MatchValue)
def case(node: ast.MatchValue, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """match device.type: case "cuda" """
    word = _word(node.value, file)
    match = next((ancestor for ancestor in file.ancestors(node) if isinstance(ancestor, ast.Match)), None)
    branch = file.parent(node)
    if isinstance(branch, ast.match_case) and first(branch.body, (), file):
        return
    if word and match and _names(match.subject, word, file):
        source = file.source(node.value)
        both = f"{source} | {_quote(source)}{_WORDS[word][0]}{_quote(source)}"
        yield from _report(node.value, word, file, goal, (file.replace(node.value, both),))


@rule.on(ast.Constant, says=(_NO_MEMORY,))
def out_of_memory(node: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    compare = file.parent(node)
    if not isinstance(compare, ast.Compare) or compare.left is not node:
        return
    if not isinstance(compare.ops[0], (ast.In, ast.NotIn)) or not str(node.value).startswith(_NO_MEMORY):
        return
    if stays(node, file, goal):
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
    """The device or backend that an operand names: "cuda", torch.device("cuda"), torch.device("cuda").type."""
    call = node.value if isinstance(node, ast.Attribute) and node.attr == "type" else node
    if isinstance(call, ast.Call) and len(call.args) == 1 and file.resolve(call.func) == "torch.device":
        return _word(call.args[0], file)
    if isinstance(node, ast.Attribute):
        return "nccl" if node.attr == "NCCL" and file.resolve(node) == "torch.distributed.Backend.NCCL" else None
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, str) and _TYPE.fullmatch(value):
        return "cuda"
    return value if isinstance(value, str) and value in _WORDS else None


def _names(node: ast.AST, word: str, file: PythonFile) -> bool:
    """Whether an expression is a device or a backend: by its name, or by what made it."""
    sink = _WORDS[word][1]
    if isinstance(node, ast.Attribute):
        return sink.named(node.attr) or (node.attr == "type" and _names(node.value, word, file))
    if isinstance(node, ast.Name):
        return sink.named(node.id) or any(_names(value, word, file) for value in _looped_over(node, file))
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and sink.named(str(node.slice.value))
    if isinstance(node, ast.Call):
        if file.resolve(node.func) == "torch.distributed.get_backend":
            return word == "nccl"
        if file.resolve(node.func) in ("str", "torch.device") and len(node.args) == 1:
            return _names(node.args[0], word, file) or isinstance(node.args[0], ast.Constant)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "type" and not node.args:  # x.type()
            return True
        method = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if method in ("lower", "get_device") and isinstance(node.func, ast.Attribute):
            return _names(node.func.value, word, file)
        return sink.named(method) and not any(isinstance(argument, ast.Constant) for argument in node.args)
    return False


def _looped_over(name: ast.Name, file: PythonFile) -> Iterator[ast.expr]:
    """any("cuda" in d for d in devices)"""
    for around in file.ancestors(name):
        if isinstance(around, (ast.GeneratorExp, ast.ListComp, ast.SetComp)):
            first = around.generators[0]
            if isinstance(first.target, ast.Name) and first.target.id == name.id:
                yield first.iter
        elif isinstance(around, ast.stmt):
            return


def _equality(
    node: ast.Compare, constant: ast.AST, other: ast.AST, operator: ast.cmpop, word: str, file: PythonFile
) -> tuple[Edit, ...]:
    source = file.source(constant)
    quote = _quote(source)
    both = f"({source}, {quote}{_WORDS[word][0]}{quote})"
    if isinstance(constant, ast.Constant) and (kind := _TYPE.fullmatch(str(constant.value))):
        both = f"({source}, {quote}torch.npu.{kind[1]}{quote})"
    elif isinstance(constant, ast.Call) or (isinstance(constant, ast.Attribute) and constant.attr == "type"):
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
    """device == torch.device("cuda") -> device.type in ("cuda", "npu")"""
    kind = file.source(other) if isinstance(constant, ast.Attribute) else f"{file.source(other)}.type"
    negation = "not " if isinstance(operator, ast.NotEq) else ""
    return (file.replace(node, f'{kind} {negation}in ("cuda", "npu")'),)


def _is_start_of_device(node: ast.Subscript, file: PythonFile) -> bool:
    """str(device)[:4]"""
    end = node.slice.upper if isinstance(node.slice, ast.Slice) and node.slice.lower is None else None
    return isinstance(end, ast.Constant) and end.value == 4 and _names(node.value, "cuda", file)


def _start(node: ast.Compare, left: ast.Subscript, operator: ast.cmpop, file: PythonFile) -> tuple[Edit, ...]:
    if not isinstance(node.comparators[0], ast.Constant) or node.comparators[0].value != "cuda":
        return ()
    negation = "not " if isinstance(operator, ast.NotEq) else ""
    return (file.replace(node, f'{negation}{file.source(left.value)}.startswith(("cuda", "npu"))'),)


def _quote(source: str) -> str:
    return source[-1] if source[-1] in "\"'" else '"'


def _contained(node: ast.Compare, other: ast.AST, operator: ast.cmpop, word: str, file: PythonFile) -> tuple[Edit, ...]:
    """'cuda' in device -> ('cuda' in device or 'npu' in device)"""
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
    portable: tuple[Edit, ...],
) -> Iterator[Finding]:
    if stays(node, file, goal):
        return
    new = _WORDS[word][0]
    reason = why_left(node, file)
    edits: tuple[Edit, ...] = ()
    if not reason:
        edits = style_of(goal).either(portable, _npu(node, word, file), file)
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
