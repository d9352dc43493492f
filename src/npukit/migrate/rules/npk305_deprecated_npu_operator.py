"""torch_npu operators that are deprecated or missing in the target version.

bad:
    import torch_npu
    y = torch_npu.npu_silu(x)

good:
    import torch
    y = torch.nn.functional.silu(x)
"""

from __future__ import annotations

import ast

from npukit.facts.torch_npu.support import has_own_op, own_ops
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK305",
    "deprecated-npu-operator",
    words=("torch_npu.npu_",),
    severity=Severity.warning,
    why="Deprecated operators are removed in later versions.",
    remedy="Use the replacement that the finding names, or plain torch operators.",
    effort=Effort(45, 10),
)


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = file.resolve(call.func) or ""
    op = name.removeprefix("torch_npu.")
    own_op = own_ops().get(op)
    if name == op or own_op is None or has_own_op(op, goal.target.torch_npu):
        return
    yield rule.finding(
        (file, call),
        f"{op} is deprecated" if own_op.instead else f"{op} is missing in torch_npu {goal.target.torch_npu}",
        remedy=f"Use {own_op.instead}." if own_op.instead not in ("", "-") else "Use plain torch operators.",
    )
