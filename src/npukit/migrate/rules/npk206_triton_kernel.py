"""Triton kernels.

bad:
    import triton
    @triton.jit
    def add(x_ptr, n, BLOCK: triton.language.constexpr):
        pass

good:
    import torch
    def add(x, y):
        return x + y
"""

from __future__ import annotations

import ast

from npukit.facts.kernels import kernel_named
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule

_OTHERWISE = "run the kernel with triton-ascend and smaller blocks."

rule = Rule(
    "NPK206",
    "triton-kernel",
    words=("triton",),
    why="Upstream Triton has no NPU backend, and blocks sized for CUDA often exceed the buffer of an NPU core.",
    remedy=f"Use the PyTorch path on NPUs, or {_OTHERWISE}",
    effort=Effort(240, 120),
)


@rule.on(ast.FunctionDef)
def check(function: ast.FunctionDef, file: PythonFile, goal: Goal) -> Findings:
    for decorator in function.decorator_list:
        name = file.resolve(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name == "triton.jit":
            known = kernel_named([function.name, file.path.stem])
            yield rule.finding(
                (file, function),
                "Triton kernels need triton-ascend and their own tuning",
                remedy=f"{known.remedy(goal.target)} Or {_OTHERWISE}" if known else "",
                evidence=f"def {function.name}",
                subject=known.name if known else "",
            )
