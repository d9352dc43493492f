"""RMSNorm written out.

bad:
    import torch
    def norm(x, weight):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

good:
    import torch_npu
    def norm(x, weight):
        return torch_npu.npu_rms_norm(x, weight, 1e-6)[0]
"""

from __future__ import annotations

import ast

from npukit.facts.affinity import fused
from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import inside, method

rule = Rule(
    "NPK602",
    "rms-norm-by-hand",
    words=("rsqrt",),
    severity=Severity.note,
    why="Five operators read and write all activations where one would do.",
    remedy="Call torch_npu.npu_rms_norm on NPUs.",
)


@rule.on_call(("rsqrt",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if method(call) != "rsqrt":
        return
    around = file.function(call)
    written_out = not isinstance(around, ast.Module) and any(_mean_of_squares(node) for node in inside(around))
    if written_out and (instead := fused("rms_norm", goal.target)):
        yield rule.finding((file, call), "RMSNorm is written out", remedy=instead.advice)


def _mean_of_squares(node: ast.AST) -> bool:
    if method(node) != "mean" or not isinstance(node, ast.Call) or not _over_the_last(node):
        return False
    squared = node.args[0] if not isinstance(node.func, ast.Attribute) else node.func.value
    if isinstance(squared, ast.Name) and node.args:
        squared = node.args[0]  # torch.mean(x ** 2)
    power = isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Pow) and _is_two(squared.right)
    called = isinstance(squared, ast.Call) and (
        method(squared) == "square"
        or (method(squared) == "pow" and _is_two(squared.args[-1] if squared.args else None))
    )
    return power or called


def _over_the_last(mean: ast.Call) -> bool:
    dims = [*mean.args, *(keyword.value for keyword in mean.keywords if keyword.arg == "dim")]
    return any(isinstance(dim, ast.UnaryOp) and ast.unparse(dim) == "-1" for dim in dims)


def _is_two(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == 2
