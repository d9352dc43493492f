"""Move tensors and modules with .to(device).

before:           x = x.cuda(rank, non_blocking=True)
after (npu):      x = x.npu(rank, non_blocking=True)
after (portable): x = x.to(rank, non_blocking=True)

Without an argument it becomes `x.to(device)`, with the device that the file has chosen, else with the current
accelerator. A number means a card of the accelerator in `to` as well. A class that defines its own `cuda` method keeps
it, as do calls of that method on `self`, on `super()` and on its objects. A method that is named and not
called, as in `map(torch.Tensor.cuda, batch)` and `getattr(x, "cuda")`, is reported.
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.decision import is_kept
from npukit.migrate.own_cuda import needs_cuda, own_cuda
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.torch_imports import is_of_another_framework
from npukit.source.modules import file_of

rule = Rule(
    "NPK110",
    "move-to-device",
    words=(".cuda",),
    fixes=True,
    why='A torch without CUDA support raises "Torch not compiled with CUDA enabled".',
    remedy="Use .to() with the device, or .npu().",
    effort=Effort(15, 5),
)

_UNBOUND = ("torch.Tensor.cuda", "torch.nn.Module.cuda")
_OPTIONS = re.compile(r"args|opts?|options|cfg|conf|config|params|flags", re.IGNORECASE)  # args.cuda is a flag
_NAMED = "Call .to() with the device: map(lambda x: x.to(device), batch)."
_OVERRIDDEN = "The method is for CUDA. Migrated code calls .to() instead."


@rule.on_call(("cuda",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    func = call.func
    if not isinstance(func, ast.Attribute) or file.resolve(func) == "torch.cuda" or is_of_another_framework(file):
        return
    if _is_module(func.value, file):  # utils.cuda(batch), a function of the project
        return
    if _own_method(func, file) or is_kept(call, file, goal):
        return
    if method := own_cuda(func.value, file):
        if needs_cuda(method):
            what = f"{file.source(func)[:60]}() is a method of the project that moves to a CUDA device"
            yield rule.finding((file, call), what, why=_OVERRIDDEN, remedy="Let the method take a device.")
        return
    edits = style_of(goal).move(call, func, file, goal)
    yield rule.finding(
        (file, call),
        f"{file.source(func)[:60]}() moves to a CUDA device",
        edits=edits,
    )


@rule.on(ast.Attribute, says=("cuda",))
def check_unbound(method: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    """Report methods that are passed on: map(torch.Tensor.cuda, batch)"""
    parent = file.parent(method)
    is_called = isinstance(parent, ast.Call) and parent.func is method
    if is_called or not isinstance(method.ctx, ast.Load) or file.resolve(method) not in _UNBOUND:
        return
    if not is_kept(method, file, goal):
        yield rule.finding((file, method), f"{file.source(method)} moves to a CUDA device", remedy=_NAMED)


@rule.on_call(("getattr", "methodcaller"))
def check_name(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Report methods given by name: getattr(x, "cuda")(), map(operator.methodcaller("cuda"), batch)"""
    if not call.args or len(call.args) > 2 or getattr(call.args[-1], "value", None) != "cuda":
        return
    receiver = call.args[:-1]
    is_getattr = isinstance(call.func, ast.Name) and call.func.id == "getattr"
    if is_getattr != bool(receiver) or (receiver and _OPTIONS.fullmatch(file.source(receiver[0]).rpartition(".")[2])):
        return
    if not is_kept(call, file, goal):
        yield rule.finding((file, call), f"{file.source(call)[:60]} requires a CUDA device", remedy=_NAMED)


def _is_module(receiver: ast.expr, file: PythonFile) -> bool:
    module = file.resolve(receiver) or ""
    return bool(module) and file_of(module, file.path, file.names.root) is not None


def _own_method(func: ast.Attribute, file: PythonFile) -> bool:
    receiver = func.value
    on_self = isinstance(receiver, ast.Name) and receiver.id == "self"
    on_super = isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "super"
    if not (on_self or on_super):
        return False
    owner = file.class_around(func)
    return owner is not None and any(isinstance(node, ast.FunctionDef) and node.name == "cuda" for node in owner.body)
