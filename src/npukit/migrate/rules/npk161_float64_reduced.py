"""Reduce in float32: HCCL does not reduce float64.

before:           total = torch.tensor([3.0], dtype=torch.float64); dist.all_reduce(total)
after (npu):      total = torch.tensor([3.0], dtype=torch.float32); dist.all_reduce(total)
after (portable): total = torch.tensor([3.0], dtype=torch.float32); dist.all_reduce(total)

Only tensors that are created with an explicit type in the same function are changed. Counts stay exact up to 16
million.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding
from npukit.source import PythonFile

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
        dtype = file.argument(made, None, "dtype") if isinstance(made, ast.Call) else None
        if file.resolve(dtype) in _FLOAT64 and not writing.stays(call, file):
            assert dtype is not None
            yield rule.finding(
                (file, dtype),
                "HCCL does not reduce float64",
                edits=[
                    file.replace(dtype, file.source(dtype).replace("float64", "float32").replace("double", "float32"))
                ],
            )
