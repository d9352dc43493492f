"""Reduce in float32: HCCL does not reduce float64.

before:           total = torch.tensor([3.0], dtype=torch.float64); dist.all_reduce(total)
after (npu):      total = torch.tensor([3.0], dtype=torch.float32); dist.all_reduce(total)
after (portable): total = torch.tensor([3.0], dtype=torch.float32); dist.all_reduce(total)

Only tensors that are created with an explicit type in the same function are changed. Counts stay exact up to 16
million. A tensor that values are added to before it is reduced is reported: it has its precision for a reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK161",
    "float64-reduced",
    words=("all_reduce", "reduce_scatter", ".reduce("),
    fixes=True,
    why='HCCL raises "Unsupported data type at::kDouble".',
    remedy="Reduce in float32.",
    effort=Effort(15, 5),
)

_NAMES = ("all_reduce", "reduce", "reduce_scatter_tensor")
_REDUCE = tuple(f"torch.distributed.{name}" for name in _NAMES)
_FLOAT64 = ("torch.float64", "torch.double")


@rule.on_call(_NAMES)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not call.args or not isinstance(call.args[0], ast.Name):
        return
    if file.resolve(call.func) not in _REDUCE:
        return
    for binding in file.bindings(call.args[0]):
        made = binding.value
        either = [made.body, made.orelse] if isinstance(made, ast.IfExp) else [made]
        types = [file.argument(each, None, "dtype") if isinstance(each, ast.Call) else None for each in either]
        doubles = [each for each in types if each is not None and file.resolve(each) in _FLOAT64]
        if doubles and not writing.stays(call, file, goal):
            yield rule.finding(
                (file, doubles[0]),
                "HCCL does not reduce float64",
                edits=[_in_float32(each, file) for each in doubles]
                if len(doubles) == len(either) and not _adds_up(call.args[0].id, call, file)
                else (),
            )


def _adds_up(name: str, call: ast.Call, file: PythonFile) -> bool:
    """Whether a tensor collects many values before it is reduced, and has its precision for that: sigma += x.T @ x"""
    return any(
        isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        for node in ast.walk(file.function(call))
    )


def _in_float32(dtype: ast.expr, file: PythonFile) -> Edit:
    return file.replace(dtype, file.source(dtype).replace("float64", "float32").replace("double", "float32"))
