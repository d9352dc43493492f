"""Kernels written in Triton.

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
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule("NPK206", "triton-kernel", words=("triton",), severity=Severity.error)


@rule.on(ast.FunctionDef)
def check(function: ast.FunctionDef, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    for decorator in function.decorator_list:
        name = file.resolve(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if name == "triton.jit":
            yield rule.finding(
                (file, function),
                "a Triton kernel needs triton-ascend, and tuning of its own",
                why="Upstream Triton makes no code for NPUs; blocks chosen for CUDA often exceed an NPU core's buffer.",
                remedy="Take the torch path on NPUs, or try the kernel with triton-ascend and smaller blocks.",
                evidence=f"def {function.name}",
            )
