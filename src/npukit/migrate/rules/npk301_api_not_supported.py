"""torch functions that torch_npu does not support.

bad:
    import torch
    y = torch.hspmm(a, b)

good:
    import torch
    y = torch.mm(a.to_dense(), b)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.support import called_api, unsupported_names

rule = Rule(
    "NPK301",
    "api-not-supported",
    words=("torch",),
    severity=Severity.warning,
    why="torch_npu has no kernel for this function.",
    remedy="Replace the function, or run this part on the CPU.",
    effort=Effort(45, 10),
)


@rule.on_call(unsupported_names)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    fact = called_api(call, file, goal)
    if fact and fact.status == "no":
        yield rule.finding(
            (file, call),
            f"{fact.api} {'has no kernel' if fact.certain else 'is documented as unsupported'} on {goal.target.card}",
            why=f"Source: {fact.source}.",
            remedy=""
            if fact.certain
            else "Try it before you replace it: functions composed of other operators often work.",
            severity=Severity.error if fact.certain else Severity.note,
        )
