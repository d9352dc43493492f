"""Move tensors and modules with .to(device).

before:           x = x.cuda(rank, non_blocking=True)
after (npu):      x = x.npu(rank, non_blocking=True)
after (portable): x = x.to(rank, non_blocking=True)

Without an argument it becomes `x.to(device)`, with the device that the file has chosen, else with the current
accelerator. A number means a card of the accelerator in `to` as well. A class that defines its own `cuda` method keeps
it, as do calls of that method on `self`, on `super()` and on objects that it makes.
"""

from __future__ import annotations

import ast

from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.torch_imports import is_of_another_framework
from npukit.source.definitions import definition_of

rule = Rule(
    "NPK110",
    "move-to-device",
    words=(".cuda",),
    fixes=True,
    why='A torch without CUDA support raises "Torch not compiled with CUDA enabled".',
    remedy="Use .to() with the device, or .npu().",
    effort=Effort(15, 5),
)


@rule.on_call(("cuda",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    func = call.func
    if not isinstance(func, ast.Attribute) or file.resolve(func) == "torch.cuda" or is_of_another_framework(file):
        return
    if _own_method(func, file) or _is_of_project(func.value, file) or is_kept(call, file, goal):
        return
    edits = style_of(goal).move(call, func, file, goal)
    yield rule.finding(
        (file, call),
        f"{file.source(func)[:60]}() moves to a CUDA device",
        edits=edits,
    )


def _own_method(func: ast.Attribute, file: PythonFile) -> bool:
    receiver = func.value
    on_self = isinstance(receiver, ast.Name) and receiver.id == "self"
    on_super = isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Name) and receiver.func.id == "super"
    if not (on_self or on_super):
        return False
    owner = file.class_around(func)
    return owner is not None and any(getattr(node, "name", "") == "cuda" for node in owner.body)


def _is_of_project(receiver: ast.expr, file: PythonFile) -> bool:
    """Return whether a class of the project with a `cuda` of its own makes an object: ema = Ema(model); ema.cuda()"""
    values: list[ast.AST | None] = [receiver]
    if isinstance(receiver, ast.Name):
        values = [binding.value for binding in file.bindings(receiver)]
    elif isinstance(receiver, ast.Attribute):
        stored = (use for use in file.by_name.get(receiver.attr, ()) if isinstance(use.ctx, ast.Store))
        values = [getattr(file.parent(use), "value", None) for use in stored]
    makers = [value.func for value in values if isinstance(value, ast.Call)]
    kinds = [definition_of(maker, file.names, "def cuda(") for maker in makers]
    return any(isinstance(kind, ast.ClassDef) and _defines_cuda(kind) for kind in kinds)


def _defines_cuda(kind: ast.ClassDef) -> bool:
    """Return whether a class that is neither a module nor a tensor has a method `cuda`."""
    is_torchs = any(ast.unparse(base).endswith(("Module", "Tensor")) for base in kind.bases)
    return not is_torchs and any(isinstance(node, ast.FunctionDef) and node.name == "cuda" for node in kind.body)
