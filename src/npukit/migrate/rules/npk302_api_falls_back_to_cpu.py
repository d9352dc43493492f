"""torch functions that torch_npu runs on the CPU.

bad:
    import torch
    d = torch.linalg.det(x)

good:
    import torch
    q = torch.linalg.qr(x)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.support import called_api, unsupported_names

rule = Rule(
    "NPK302",
    "api-falls-back-to-cpu",
    words=("torch",),
    severity=Severity.warning,
    why="torch_npu has no kernel for this function, so every call copies tensors to the host and back.",
    remedy="Keep it out of the training step, or build it from operators that have a kernel.",
    effort=Effort(45, 10),
)


@rule.on_call(unsupported_names)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    fact = called_api(call, file, goal)
    if fact and fact.status == "cpu_fallback":
        yield rule.finding(
            (file, call),
            f"{fact.api} {'runs' if fact.certain else 'may run'} on the CPU",
            why=f"{'torch_npu has no kernel for it' if fact.certain else 'torch_npu lacks a kernel for some cases'},"
            f" so tensors are copied to the host and back. Source: {fact.source}.",
            severity=Severity.warning if fact.certain else Severity.note,
        )
