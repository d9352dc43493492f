"""CUDA names that behave differently on NPUs.

bad:
    import torch
    bf16 = torch.cuda.get_device_capability()[0] >= 8

good:
    import torch
    bf16 = torch.cuda.is_bf16_supported()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.lookup import used_apis
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.training import tolerates_failure
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK202",
    "cuda-api-differs",
    words=("cuda", "cudnn", "collective_group"),
    severity=Severity.warning,
    why="The NPU's function returns something else.",
    remedy="Use the alternative that fits what the code needs to know (`npukit explain NPK202` lists them).",
    effort=Effort(20, 5),
    supersedes=("NPK101",),
)


@rule.on(ast.Module)
def check(module: ast.Module, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    for node, api in used_apis(file):
        if api.kind == "differs":
            yield rule.finding(
                (file, node),
                f"{api.name} behaves differently on NPUs",
                why=api.why,
                remedy=api.remedy_for(goal.target),
                severity=Severity.note if tolerates_failure(node, file) else None,
                subject=api.name,
            )


@rule.on_call(("_record_memory_history",))
def old_arguments(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100000)"""
    if any((keyword.arg or "").startswith("trace_alloc_") for keyword in call.keywords):
        yield rule.finding(
            (file, call.func),
            "torch_npu's _record_memory_history does not take the arguments of torch 2.0",
            why="It raises a TypeError for trace_alloc_max_entries and trace_alloc_record_context.",
            remedy='Use _record_memory_history(enabled="all", max_entries=...), which torch.cuda takes as well.',
        )
