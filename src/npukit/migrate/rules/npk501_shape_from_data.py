"""Operators in a training step whose output shape depends on the data.

The shape has to be read back from the device, and every new shape is compiled or looked up again.

bad:
    import torch
    class Head(torch.nn.Module):
        def forward(self, x, mask):
            return torch.masked_select(x, mask).mean()

good:
    import torch
    class Head(torch.nn.Module):
        def forward(self, x, mask):
            return (x * mask).sum() / mask.sum()
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import enclosing_loops, method, step_loops

rule = Rule(
    "NPK501",
    "shape-from-data",
    words=("nonzero", "masked_select", "unique", "where", "argwhere"),
    needs=("torch",),
    severity=Severity.warning,
    why="The host has to wait for the device to learn the shape, and each new shape is compiled or looked up.",
    remedy="In hot code, keep the full shape and use a mask (torch.where with three arguments).",
    effort=Effort(30, 5),
)

_FUNCTIONS = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"}
_METHODS = {"nonzero", "masked_select", "unique_consecutive", "argwhere"}  # .unique() is also a method of pandas


@rule.on_call({*_FUNCTIONS, "where"})
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = file.resolve(call.func) or ""
    last = name.removeprefix("torch.")
    one_sided_where = name == "torch.where" and len(call.args) == 1 and not call.keywords
    of_torch = name.startswith("torch.") and last in _FUNCTIONS
    is_method = not name and method(call) in _METHODS and "torch" in file.text
    if (of_torch or is_method or one_sided_where) and _in_step(call, file):
        yield rule.finding((file, call), f"the output shape of {last if name else method(call)} depends on the data")


def _in_step(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a call runs in every step, in a `forward` or in a training loop."""
    function = file.function(node)
    if getattr(function, "name", "") in ("forward", "training_step", "loss", "get_loss"):
        return True
    return any(loop in step_loops(file) for loop in enclosing_loops(node, file))
