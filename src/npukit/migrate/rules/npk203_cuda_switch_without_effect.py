"""Settings of cuDNN, cuBLAS and CUDA attention kernels that have no effect on NPUs.

bad:
    import torch
    torch.backends.cudnn.deterministic = True

good:
    import torch
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = False
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.lookup import used_apis
from npukit.migrate.rule import Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK203",
    "cuda-switch-without-effect",
    words=("cudnn", "backends", "matmul_precision"),
    severity=Severity.note,
    why="The setting belongs to a CUDA library that NPUs do not use.",
    remedy="Nothing has to change: it can stay for CUDA. `npukit explain NPK203` lists the settings that NPUs have.",
)


@rule.on(ast.Module)
def check(module: ast.Module, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    for node, api in used_apis(file):
        turns_off = (
            isinstance(value := getattr(file.parent(node), "value", None), ast.Constant) and value.value is False
        )
        if api.kind == "ignored" and not turns_off:
            yield rule.finding(
                (file, node),
                f"{api.name} has no effect on NPUs",
                why=api.why,
                remedy=api.remedy_for(goal.target),
                subject=api.name,
            )
