"""torch.cuda names without a counterpart in torch.npu.

bad:
    import torch
    torch.cuda.nvtx.range_push("forward")

good:
    import torch
    with torch.profiler.record_function("forward"):
        pass
"""

from __future__ import annotations

import ast

from npukit.migrate.lookup import ApiRule
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Severity
from npukit.migrate.training import tolerates_failure

rule = ApiRule(
    "NPK201",
    "cuda-api-without-counterpart",
    kind="none",
    states="has no counterpart on NPUs",
    words=("cuda", "nvtx", "NCCL"),
    why="torch.npu does not provide this function.",
    remedy="Use its replacement (`npukit explain NPK201` lists them), or remove the call.",
    effort=Effort(20, 5),
    supersedes=("NPK101", "NPK102", "NPK103"),
)


@rule.on(ast.Module)
def private(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
    """Report private functions: torch._C._cuda_attach_out_of_memory_observer(...)"""
    for last in [name for name in file.by_name if name.startswith("_cuda_")]:
        for node in file.by_name[last]:
            if file.resolve(node) == f"torch._C.{last}":
                new = f"torch_npu._C._npu_{last.removeprefix('_cuda_')}"
                yield rule.finding(
                    (file, node),
                    f"torch._C.{last} exists only in a torch that is built for CUDA",
                    remedy=f"Use {new} on NPUs, where it exists.",
                    severity=Severity.note if tolerates_failure(node, file) else None,
                    subject=f"torch._C.{last}",
                )
