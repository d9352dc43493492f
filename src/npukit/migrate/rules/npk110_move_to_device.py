"""Move tensors and modules with .to(device).

before:           x = x.cuda(rank, non_blocking=True)
after (npu):      x = x.npu(rank, non_blocking=True)
after (portable): x = x.to(torch.device(DEVICE.type, rank), non_blocking=True)

A class that defines its own `cuda` method keeps it, as do calls of that method on `self`, on `super()` and on objects
of a class that has no `to`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.sinks import DEVICE
from npukit.migrate.torch_imports import is_of_another_framework
from npukit.report import Finding
from npukit.source import Edit, PythonFile
from npukit.source.names import definition_of

rule = Rule(
    "NPK110",
    "move-to-device",
    words=(".cuda",),
    fixes=True,
    why='A torch without CUDA support raises "Torch not compiled with CUDA enabled".',
    remedy="Use .to() with the accelerator, or .npu().",
    effort=Effort(15, 5),
)


@rule.on_call(("cuda",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    func = call.func
    if not isinstance(func, ast.Attribute) or file.resolve(func) == "torch.cuda" or is_of_another_framework(file):
        return
    if _own_method(func, file) or _only_has_cuda(func.value, file) or writing.stays(call, file):
        return
    edits = _portable(call, func, file, goal) if goal.portable else _npu(func, file)
    yield rule.finding(
        (file, call),
        f"{file.source(func)[:60]}() moves to a CUDA device",
        remedy="Use .to(DEVICE)." if goal.portable else "Use .npu().",
        edits=edits,
    )


def _own_method(func: ast.Attribute, file: PythonFile) -> bool:
    receiver = func.value
    on_self = isinstance(receiver, ast.Name) and receiver.id == "self"
    on_super = isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "super"
    if not (on_self or on_super):
        return False
    owner = next((each for each in file.ancestors(func) if isinstance(each, ast.ClassDef)), None)
    return owner is not None and any(isinstance(each, ast.FunctionDef) and each.name == "cuda" for each in owner.body)


def _only_has_cuda(receiver: ast.expr, file: PythonFile) -> bool:
    """Whether it is an object of a class of the project that has `cuda`, but no `to`."""
    made = [each.value for each in file.bindings(receiver)] if isinstance(receiver, ast.Name) else [receiver]
    for value in made:
        kind = definition_of(value.func, file.names, "def cuda(") if isinstance(value, ast.Call) else None
        if isinstance(kind, ast.ClassDef):
            methods = {each.name for each in kind.body if isinstance(each, ast.FunctionDef)}
            if "cuda" in methods and "to" not in methods and not any("Module" in ast.unparse(b) for b in kind.bases):
                return True
    return False


def _is_storage(value: ast.expr, file: PythonFile) -> bool:
    """Whether it is what torch.load hands to `map_location=lambda storage, location: ...`, under whatever name."""
    function = next((each for each in file.ancestors(value) if isinstance(each, ast.Lambda)), None)
    if function is None or [file.source(value)] != [each.arg for each in function.args.args[:1]]:
        return False
    call = next((each for each in file.ancestors(function) if isinstance(each, ast.Call)), None)
    return call is not None and file.argument(call, 1, "map_location") is function


def _npu(func: ast.Attribute, file: PythonFile) -> tuple[Edit, ...]:
    end = file.span(func)[1]
    return (*writing.import_torch_npu(file), Edit(end - len("cuda"), end, "npu"))


def _portable(call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    unclear = any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords)
    constant = writing.device(call, file, goal)
    if unclear or constant is None:
        return ()
    end = file.span(func)[1]
    edits = [*constant.edits, Edit(end - len("cuda"), end, "to")]
    if file.resolve(func.value):  # torch.nn.Module.cuda(model)
        return (*edits, file.insert(file.span(call.args[0])[1], f", {constant.text}")) if len(call.args) == 1 else ()
    given = file.argument(call, 0, "device")
    keyword = "device=" if _is_storage(func.value, file) else ""  # a storage's `to` takes it no other way
    if keyword and call.args:
        edits.append(file.insert(file.span(call.args[0])[0], keyword))
    if given is None:
        open_bracket = file.text.index("(", end)
        edits.append(file.insert(open_bracket + 1, keyword + constant.text + (", " if call.keywords else "")))
    elif not _is_device(given):
        torch = writing.torch_name(file).text
        edits += _numbered(given, constant.text, torch, file)
    if len(call.args) > 1:
        edits.append(file.insert(file.span(call.args[1])[0], "non_blocking="))
    return tuple(edits)


def _is_device(given: ast.expr) -> bool:
    """Whether the argument is a device by its name, rather than a card's number."""
    name = given.id if isinstance(given, ast.Name) else given.attr if isinstance(given, ast.Attribute) else ""
    is_string = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(given))
    return DEVICE.named(name) or is_string


def _numbered(given: ast.expr, constant: str, torch: str, file: PythonFile) -> list[Edit]:
    is_current = isinstance(given, ast.Call) and file.resolve(given.func) == "torch.cuda.current_device"
    if is_current or (isinstance(given, ast.Constant) and given.value is None) or _is_selected(given, file):
        return [file.replace(given, constant)]
    if isinstance(given, ast.Call) and file.resolve(given.func) == "torch.device" and len(given.args) == 1:
        number = given.args[0]
        return [] if _is_device(number) else [file.insert(file.span(number)[0], f"{constant}.type, ")]
    start, end = file.span(given)
    return [file.insert(start, f"{torch}.device({constant}.type, "), file.insert(end, ")")]


def _is_selected(given: ast.expr, file: PythonFile) -> bool:
    """Whether the program makes this card its current one: torch.cuda.set_device(rank)"""
    if not isinstance(given, (ast.Name, ast.Attribute)) or "set_device(" not in file.text:
        return False
    return file.source(given) in _selected(file)


@lru_cache(maxsize=4)
def _selected(file: PythonFile) -> frozenset[str]:
    calls = (
        node for node in file.nodes if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "set_device"
    )
    return frozenset(file.source(call.args[0]) for call in calls if len(call.args) == 1)
