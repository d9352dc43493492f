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

from npukit.migrate.lookup import ApiRule
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Severity

rule = ApiRule(
    "NPK202",
    "cuda-api-differs",
    kind="differs",
    states="behaves differently on NPUs",
    words=("cuda", "cudnn", "collective_group"),
    severity=Severity.warning,
    why="The NPU's function returns something else.",
    remedy="Use the alternative that fits what the code needs to know (`npukit explain NPK202` lists them).",
    effort=Effort(20, 5),
    supersedes=("NPK101",),
)


@rule.on_call(("_record_memory_history",))
def old_arguments(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Report old arguments: torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100000)"""
    if any((keyword.arg or "").startswith("trace_alloc_") for keyword in call.keywords):
        yield rule.finding(
            (file, call.func),
            "torch_npu's _record_memory_history does not take the arguments of torch 2.0",
            why="It raises a TypeError for trace_alloc_max_entries and trace_alloc_record_context.",
            remedy='Use _record_memory_history(enabled="all", max_entries=...), which torch.cuda takes as well.',
        )
