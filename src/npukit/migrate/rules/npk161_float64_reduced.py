"""Reduce in float32: HCCL does not reduce float64.

before:           t = torch.zeros(1, dtype=torch.float64); dist.all_reduce(t)
after (npu):      t = torch.zeros(1, dtype=torch.float32); dist.all_reduce(t)
after (portable): t = torch.zeros(1, dtype=torch.float32 if DEVICE.type == "npu" else torch.float64); dist.all_reduce(t)

Only tensors that are created with an explicit type in the same function are changed. Counts stay exact up to 16
million. A tensor that values are added to before it is reduced, or that holds times, is reported: it has its precision
for a reason.
"""

from __future__ import annotations

import ast
import re
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
    supersedes=("NPK709",),
)

_NAMES = ("all_reduce", "reduce", "reduce_scatter_tensor")
_REDUCE = tuple(f"torch.distributed.{name}" for name in _NAMES)
_TIMES = re.compile(r"time|stamp", re.IGNORECASE)
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
                edits=[edit for each in doubles for edit in _in_float32(each, file, goal)]
                if len(doubles) == len(either) and not _is_exact(call.args[0].id, doubles, call, file)
                else (),
            )


def _is_exact(name: str, doubles: list[ast.expr], call: ast.Call, file: PythonFile) -> bool:
    """Whether a tensor has its precision for a reason: it collects values (sigma += x.T @ x), or holds times."""
    made = [file.parent(file.parent(each) or each) or each for each in doubles]
    return any(_TIMES.search(file.source(each)) for each in made) or any(
        isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        for node in ast.walk(file.function(call))
    )


def _in_float32(dtype: ast.expr, file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    """The type for NPUs; CUDA keeps its own."""
    old = file.source(dtype)
    new = old.replace("float64", "float32").replace("double", "float32")
    if not goal.portable:
        return (file.replace(dtype, new),)
    kind = writing.device_type(dtype, file, goal)
    return (*kind.edits, file.replace(dtype, f'{new} if {kind.text} == "npu" else {old}')) if kind else ()
