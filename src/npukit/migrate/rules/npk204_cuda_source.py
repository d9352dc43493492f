"""CUDA C++ sources, and C++ sources that include CUDA headers: nothing compiles them for an NPU.

bad (kernel.cu):
    __global__ void add(float *x) { x[threadIdx.x] += 1; }

good (kernel.cpp):
    int add(int x) { return x + 1; }
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule, place_in
from npukit.report import Finding, Place, Severity
from npukit.source import Document

rule = Rule("NPK204", "cuda-source", words=("__global__", "cuda", "<<<"), severity=Severity.error)

_KERNEL = re.compile(r"__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?[\w:<>\s*]*?(\w+)\s*\(")
_INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]*(?:cuda|cublas|cudnn|nccl|thrust/|cub/)[^>"]*)[>"]', re.IGNORECASE)
_REMEDY = (
    "Replace what it computes by torch operators or a fused operator of torch_npu, or write it as an Ascend C operator"
    " and keep this one for CUDA only."
)


@rule.on_text("cuda")
def check_cuda(document: Document, goal: Goal) -> Iterator[Finding]:
    kernels = [match[1] for match in _KERNEL.finditer(document.text)]
    named = f", kernels {', '.join(kernels[:4])}{', …' if len(kernels) > 4 else ''}" if kernels else ""
    yield rule.finding(
        Place(document.path),
        "CUDA source",
        why="NPUs run kernels written in Ascend C; nothing translates CUDA C++.",
        remedy=_REMEDY,
        evidence=f"{len(document.text.splitlines())} lines{named}",
    )


@rule.on_text("cpp")
def check_cpp(document: Document, goal: Goal) -> Iterator[Finding]:
    if match := _INCLUDE.search(document.text):
        yield rule.finding(
            place_in(document, match.start(), match.end()),
            "C++ source that includes CUDA headers",
            why="The headers come with CUDA and are not there on an NPU machine.",
            remedy=_REMEDY,
            severity=Severity.note,  # it is the kernels beside it that cost work
            evidence=match[0],
        )
