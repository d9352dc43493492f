"""How a file chooses its device, and which code runs only with an accelerator.

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # this device is used everywhere
if torch.cuda.is_available():                                          # a branch that chooses one
    device = torch.device("cuda")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.facts.torch_npu.names import names_of
from npukit.migrate.goal import Goal
from npukit.migrate.regions import conditions_at
from npukit.source import PythonFile, per_file

_ASKS = ("torch.cuda.is_available", "torch.accelerator.is_available", "torch.npu.is_available")
_DEVICE = re.compile(r"cuda(?::\d+)?")
_WRITTEN = re.compile(r"""current_accelerator\(|hasattr\(\w+, ["']npu["']\)""")
_OTHER_DEVICES = re.compile(r"(?:mps|xpu|hpu|mlu|musa)\b")
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


@per_file
def names_others(file: PythonFile) -> bool:
    """Return whether a file asks for further kinds of device itself, such as mps."""
    if not _OTHER_DEVICES.search(file.text):
        return False
    strings = (constant.value for constant in file.of_type(ast.Constant))
    return any(map(_OTHER_DEVICES.fullmatch, (*file.by_name, *(text for text in strings if isinstance(text, str)))))


def own_device(node: ast.AST, file: PythonFile) -> str:
    """Return the variable that holds the accelerator's device where a node runs, or "".

    >>> own_device(call, file)  # device = torch.device("cuda"); model.cuda()
    'device'
    """
    around = list(file.ancestors(node))
    scopes = [ancestor for ancestor in around if isinstance(ancestor, _SCOPES)]
    for at, scope in enumerate(scopes):
        for name, statement in _devices(file).get(scope, ()):
            hidden = any(file.names.bindings_in(inner, name) for inner in scopes[:at])
            runs_before = (at > 0 or statement.lineno < getattr(node, "lineno", 0)) and file.parent(statement) in around
            if runs_before and not hidden and _is_accelerator(statement.value, file):
                return name
    return ""


@per_file
def _devices(file: PythonFile) -> dict[ast.AST, list[tuple[str, ast.Assign]]]:
    """Return the variables that are set once, to a device, by scope."""
    devices: dict[ast.AST, list[tuple[str, ast.Assign]]] = {}
    for node in file.of_type(ast.Assign):
        target = node.targets[0]
        if not isinstance(target, ast.Name) or len(node.targets) > 1 or not re.search("device", target.id, re.I):
            continue
        scope = file.names.scope_of(target)
        if _is_device(node.value, file) and len(file.names.bindings_in(scope, target.id)) == 1:
            devices.setdefault(scope, []).append((target.id, node))
    return devices


def _is_device(value: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is torch.device("cuda"), a choice of "cuda" or "cpu", or migrated from these."""
    if isinstance(value, ast.Call) and file.resolve(value.func) == "torch.device" and len(value.args) == 1:
        return _is_device(value.args[0], file)
    if isinstance(value, ast.IfExp):
        return _is_device(value.body, file)
    return (isinstance(value, ast.Constant) and value.value == "cuda") or bool(_WRITTEN.search(file.source(value)))


def _is_accelerator(value: ast.expr, file: PythonFile) -> bool:
    """Return whether a device is the accelerator wherever there is one. An option may have chosen the CPU instead."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    return not isinstance(value, ast.IfExp) or is_asked(value.test, file)


def is_asked(test: ast.expr, file: PythonFile) -> bool:
    """Return whether a test is torch.cuda.is_available() and nothing else."""
    return isinstance(test, ast.Call) and file.resolve(test.func) in _ASKS


def _conditions(node: ast.AST, file: PythonFile) -> Iterator[ast.If | ast.IfExp]:
    """Yield the `if` statements and conditional expressions whose test holds where a node runs."""
    for asked, holds in conditions_at(node, file):
        choice = file.parent(asked)
        if holds and isinstance(choice, (ast.If, ast.IfExp)) and choice.test is asked:
            yield choice


def is_where_available(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a node runs only if is_available() holds, or if an option prefers the accelerator to the CPU."""
    for choice in _conditions(node, file):
        if isinstance(choice, ast.IfExp) and "cpu" in file.source(choice.orelse):
            return True
        if any(_leads_to_asking(part, file) for part in ast.walk(choice.test)):
            return not (isinstance(choice.test, ast.UnaryOp) and isinstance(choice.test.op, ast.Not))
    return False


def is_skipped_without(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a node is in a test that needs an accelerator: @skipif(not torch.cuda.is_available())"""
    for asked, holds in conditions_at(node, file):
        mark = file.parent(asked)
        if not isinstance(mark, ast.Call) or mark not in getattr(file.parent(mark), "decorator_list", ()):
            continue
        if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
            asked, holds = asked.operand, not holds
        if holds and isinstance(asked, ast.expr) and is_asked(asked, file):
            return True
    return False


def _leads_to_asking(node: ast.AST, file: PythonFile) -> bool:
    """Return whether an expression holds the answer: torch.cuda.is_available(), use_cuda, args.cuda"""
    if isinstance(node, ast.Call):
        return is_asked(node, file)
    if isinstance(node, ast.Name):
        values = [binding.value for binding in file.bindings(node) if binding.value is not None]
    elif isinstance(node, ast.Attribute):
        values = _set_to(file).get(file.source(node), [])
    else:
        return False
    return any(is_asked(inner, file) for value in values for inner in ast.walk(value) if isinstance(inner, ast.Call))


@per_file
def _set_to(file: PythonFile) -> dict[str, list[ast.expr]]:
    """Return the values that a file assigns to attributes, by name."""
    values: dict[str, list[ast.expr]] = {}
    for node in file.of_type(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                values.setdefault(file.source(target), []).append(node.value)
    return values


def copies_device_name(choice: ast.AST | None, file: PythonFile) -> bool:
    """Return whether a choice copies the name of a device: "cuda" if "cuda" in device else "cpu" """
    if not isinstance(choice, ast.IfExp) or not isinstance(choice.test, (ast.Compare, ast.Call)):
        return False
    words = [node.value for node in ast.walk(choice.test) if isinstance(node, ast.Constant)]
    is_negative = isinstance(choice.test, ast.Compare) and not isinstance(choice.test.ops[0], (ast.Eq, ast.In))
    is_literal = isinstance(choice.body, ast.Constant) and choice.body.value == "cuda" and is_from_cpu(choice, file)
    return is_literal and words == ["cuda"] and not is_negative


def choice_of(node: ast.AST, file: PythonFile) -> ast.IfExp | None:
    """Return the choice that gives a node, or torch.device(node), if only torch.cuda.is_available() decides."""
    child, parent = node, file.parent(node)
    if isinstance(parent, ast.Call) and file.resolve(parent.func) == "torch.device":
        child, parent = parent, file.parent(parent)
    is_choice = isinstance(parent, ast.IfExp) and parent.body is child and is_asked(parent.test, file)
    return parent if is_choice else None  # type: ignore[return-value]


def is_from_cpu(choice: ast.IfExp, file: PythonFile) -> bool:
    """Return whether the alternative of a choice is the CPU, which shows that devices are chosen."""
    return bool(re.search(r"[\"']cpu[\"']", file.source(choice.orelse)))


def filled_in(node: ast.AST, file: PythonFile) -> ast.AST:
    """Return the whole expression that fills a string: "cuda:" + str(rank), "cuda:%d" % rank, "cuda:{}".format(rank)"""
    parent = file.parent(node)
    if isinstance(parent, ast.BinOp) and parent.left is node:
        return parent
    call = file.parent(parent) if isinstance(parent, ast.Attribute) and parent.attr == "format" else None
    return call if isinstance(call, ast.Call) else node


def is_chosen(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a string's alternative makes it a device: "cuda" if torch.cuda.is_available() else "cpu"

    So does a question that a migration extends: "cuda" if x.is_cuda else "cpu", "cuda" if "cuda" in device else "cpu".
    """
    node = filled_in(node, file)
    choice = file.parent(node)
    if not isinstance(choice, ast.IfExp) or choice.body is not node or not is_from_cpu(choice, file):
        return False
    parts = [(getattr(part, "attr", ""), getattr(part, "value", "")) for part in ast.walk(choice.test)]
    return asked_in(choice, file) is not None or any(name == "is_cuda" or value == "cuda" for name, value in parts)


def asked_in(choice: ast.AST | None, file: PythonFile) -> ast.Call | None:
    """Return torch.cuda.is_available() in the test of a choice, alone or with something cheap to ask again."""
    test = choice.test if isinstance(choice, ast.IfExp) else None
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    asked = [part for part in parts if isinstance(part, ast.Call) and is_asked(part, file)]
    calls = [node for part in parts if part for node in ast.walk(part) if isinstance(node, ast.Call)]
    return asked[0] if len(asked) == len(calls) == 1 else None


def branch(node: ast.AST, file: PythonFile, goal: Goal) -> ast.If | None:
    """Return the branch around a node that only chooses the device for CUDA, so that NPUs can get a branch like it.

    >>> branch(literal, file, goal)  # if torch.cuda.is_available(): device = "cuda"
    """
    for parent in (node, *file.ancestors(node)):
        if isinstance(parent, ast.If) and is_asked(parent.test, file) and _only_chooses(parent, file, goal):
            return parent
        if isinstance(parent, _SCOPES):
            break
    return None


def _only_chooses(choice: ast.If, file: PythonFile, goal: Goal) -> bool:
    if any(not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)) for statement in choice.body):
        return False
    if not all(file.alone_on_lines(statement) for statement in choice.body) or choice.body[0].lineno == choice.lineno:
        return False
    inside = [node for statement in choice.body for node in ast.walk(statement)]
    strings = [str(node.value) for node in inside if isinstance(node, ast.Constant) and "cuda" in str(node.value)]
    names = [file.resolve(node) or "" for node in inside if isinstance(node, ast.Attribute)]
    functions = [name.split(".")[2] for name in names if name.startswith("torch.cuda.")]
    known = names_of("npu", goal.target.torch_npu)
    return bool(strings) and all(map(_DEVICE.fullmatch, strings)) and all(function in known for function in functions)
