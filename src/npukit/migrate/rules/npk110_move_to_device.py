"""Move tensors and modules with .to(device).

before:           x = x.cuda(rank, non_blocking=True)
after (npu):      x = x.npu(rank, non_blocking=True)
after (portable): x = x.to(torch.device(DEVICE.type, rank), non_blocking=True)

A class that defines its own `cuda` method keeps it, as do calls of that method on `self`, on `super()` and on its
objects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.own_cuda import has_own_cuda
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.sinks import DEVICE
from npukit.migrate.torch_imports import is_of_another_framework
from npukit.report import Finding, Severity
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK110",
    "move-to-device",
    words=(".cuda",),
    fixes=True,
    why='A torch without CUDA support raises "Torch not compiled with CUDA enabled".',
    remedy="Use .to() with the accelerator, or .npu().",
    effort=Effort(15, 5),
)

_OVERRIDDEN = "The method is for CUDA. Migrated code calls .to() instead."


@rule.on_call(("cuda",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    func = call.func
    if not isinstance(func, ast.Attribute) or file.resolve(func) == "torch.cuda" or is_of_another_framework(file):
        return
    if goal.portable and "super().cuda(" in file.source(call) and _own_method(func, file):
        what = "super().cuda() moves to a CUDA device"
        yield rule.finding((file, call), what, why=_OVERRIDDEN, severity=Severity.note)
        return
    if _own_method(func, file) or has_own_cuda(func.value, file) or writing.stays(call, file, goal):
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


def _is_storage(value: ast.expr, file: PythonFile) -> bool:
    """Whether it is what torch.load hands to `map_location=lambda storage, location: ...`, under whatever name."""
    function = next((each for each in file.ancestors(value) if isinstance(each, ast.Lambda)), None)
    if function is None or [file.source(value)] != [each.arg for each in function.args.args[:1]]:
        return False
    call = next((each for each in file.ancestors(function) if isinstance(each, ast.Call)), None)
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) if call else ""
    return call is not None and "load" in name and file.argument(call, 1, "map_location") is function


def _npu(func: ast.Attribute, file: PythonFile) -> tuple[Edit, ...]:
    end = file.span(func)[1]
    return (*writing.import_torch_npu(file), Edit(end - len("cuda"), end, "npu"))


def _portable(call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    unclear = any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords)
    constant = writing.device(call, file, goal)
    if unclear or constant is None:
        return ()
    end = file.span(func)[1]
    edits = [Edit(end - len("cuda"), end, "to")]
    if file.resolve(func.value):  # torch.nn.Module.cuda(model)
        given = file.insert(file.span(call.args[0])[1], f", {constant.text}") if len(call.args) == 1 else None
        return (*constant.edits, *edits, given) if given else ()
    keyword = "device=" if _is_storage(func.value, file) else ""  # a storage's `to` takes it no other way
    if keyword and call.args:
        edits.append(file.insert(file.span(call.args[0])[0], keyword))
    kind = writing.device_type(call, file, goal) or constant
    where = _where(call, keyword, constant.text, kind.text, file)
    if len(call.args) > 1:
        edits.append(file.insert(file.span(call.args[1])[0], "non_blocking="))
    needs = constant.edits if any(constant.text in each.text or kind.text in each.text for each in where) else ()
    return (*needs, *edits, *where)


def _where(call: ast.Call, keyword: str, constant: str, kind: str, file: PythonFile) -> list[Edit]:
    """The device as an argument of `to`."""
    given = file.argument(call, 0, "device")
    if given is None:
        at = file.text.index("(", file.span(call.func)[1]) + 1
        return [file.insert(at, keyword + constant + (", " if call.keywords else ""))]
    edits: list[Edit] = []
    if _may_be_none(given, file):  # which `cuda` takes for the current card, and `to` for no device at all
        edits = [file.insert(file.span(given)[0], f"{constant} if {file.source(given)} is None else ")]
    if _is_current(given, file) or not _is_device(given):
        edits += _numbered(given, constant, kind, writing.torch_name(file).text, file)
    return edits


def _may_be_none(given: ast.expr, file: PythonFile) -> bool:
    """Whether it is a parameter that is None unless it is given, and nothing in the function asks whether it is."""
    bound = file.bindings(given) if isinstance(given, ast.Name) else []
    default = bound[0].value if len(bound) == 1 and bound[0].kind == "parameter" else None
    name = re.escape(file.source(given))
    asked = rf"\b(?:if|assert|not|and|or)\s+{name}\s*(?:$|:|\)|,|\b(?:and|or|else)\b)|\b{name}\s+(?:is|or)\b"
    is_none = isinstance(default, ast.Constant) and default.value is None
    return is_none and not re.search(asked, file.source(file.function(given)), re.MULTILINE)


def _is_device(given: ast.expr) -> bool:
    """Whether the argument is a device by its name, rather than a card's number."""
    name = given.id if isinstance(given, ast.Name) else given.attr if isinstance(given, ast.Attribute) else ""
    is_string = any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(given))
    made = getattr(given.func, "attr", getattr(given.func, "id", "")) if isinstance(given, ast.Call) else ""
    return DEVICE.named(name) or is_string or bool(re.fullmatch(r"get_\w+_device", made))  # get_current_device()


def _numbered(given: ast.expr, constant: str, kind: str, torch: str, file: PythonFile) -> list[Edit]:
    is_none = isinstance(given, ast.Constant) and given.value is None
    if is_none or _is_current(given, file) or _is_selected(given, file):
        return [file.replace(given, constant)]
    if isinstance(given, ast.Call) and file.resolve(given.func) == "torch.device" and len(given.args) == 1:
        number = given.args[0]
        return [] if _is_device(number) else [file.insert(file.span(number)[0], f"{kind}, ")]
    start, end = file.span(given)
    return [file.insert(start, f"{torch}.device({kind}, "), file.insert(end, ")")]


def _is_current(given: ast.expr, file: PythonFile) -> bool:
    """torch.cuda.current_device(), f"cuda:{torch.cuda.current_device()}" """
    if isinstance(given, ast.JoinedStr) and len(given.values) == 2 and isinstance(given.values[1], ast.FormattedValue):
        given = given.values[1].value
    return isinstance(given, ast.Call) and file.resolve(given.func) == "torch.cuda.current_device"


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
