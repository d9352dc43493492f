"""Adam or AdamW without the fused implementation.

bad:
    import torch
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

good:
    import torch
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
"""

from __future__ import annotations

import ast

from npukit.facts.affinity import fused
from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import has_double_star

rule = Rule(
    "NPK605",
    "optimizer-not-fused",
    words=("Adam",),
    needs=("torch",),
    severity=Severity.note,
    why="The update launches many small operators. On an NPU, launching them takes longer than computing them.",
    remedy="Pass fused=True, or use torch_npu.optim.NpuFusedAdamW on NPUs.",
)


@rule.on_function("torch.optim.Adam", "torch.optim.AdamW")
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    chosen = any(keyword.arg in ("fused", "foreach", "capturable") for keyword in call.keywords)
    if not chosen and not has_double_star(call) and (instead := fused("adamw", goal.target)):
        yield rule.finding((file, call), "the optimizer is not fused", remedy=instead.advice)
