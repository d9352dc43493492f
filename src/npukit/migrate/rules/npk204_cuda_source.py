"""CUDA C++ sources, and C++ sources that include CUDA headers.

bad (kernel.cu):
    __global__ void add(float *x) { x[threadIdx.x] += 1; }

good (kernel.cpp):
    int add(int x) { return x + 1; }
"""

from __future__ import annotations

import re

from npukit.facts.kernels import kernel_named
from npukit.migrate.rule import Document, Effort, Findings, Goal, Place, Rule, Severity

rule = Rule(
    "NPK204",
    "cuda-source",
    words=("__global__", "cuda", "<<<"),
    why="NPU kernels are written in Ascend C. No tool translates CUDA C++.",
    remedy="Replace the kernel with torch or fused torch_npu operators, or rewrite it in Ascend C.",
    effort=Effort(960, 480),
)

_KERNEL = re.compile(r"__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?[\w:<>\s*]*?(\w+)\s*\(")
_INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]*(?:cuda|cublas|cudnn|nccl|thrust/|cub/)[^>"]*)[>"]', re.IGNORECASE)


@rule.on_text("cuda")
def check_cuda(document: Document, goal: Goal) -> Findings:
    kernels = [match[1] for match in _KERNEL.finditer(document.text)]
    kernel_list = f", kernels {', '.join(kernels[:4])}{', …' if len(kernels) > 4 else ''}" if kernels else ""
    known = kernel_named([document.path.stem, *kernels])
    yield rule.finding(
        Place(document.path),
        "CUDA source",
        remedy=known.remedy(goal.target) if known else "",
        evidence=f"{len(document.text.splitlines())} lines{kernel_list}",
        subject=known.name if known else "",
    )


@rule.on_text("cpp")
def check_cpp(document: Document, goal: Goal) -> Findings:
    if match := _INCLUDE.search(document.text):
        yield rule.finding(
            (document, match.span()),
            "C++ source that includes CUDA headers",
            why="CUDA headers are missing on an NPU machine.",
            severity=Severity.note,
        )
