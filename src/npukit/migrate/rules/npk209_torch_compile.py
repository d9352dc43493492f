"""torch.compile with its default backend.

bad:
    import torch
    model = torch.compile(model)

good:
    import torch
    model = torch.compile(model, backend="npugraphs")
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Finding, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK209",
    "torch-compile",
    words=("compile",),
    severity=Severity.warning,
    why="The default backend generates Triton code. Without triton-ascend, compilation fails at the first call.",
    remedy='Make it optional: on NPUs disable it first, then try backend="npugraphs" or TorchAir.',
    effort=Effort(20, 5),
    since="2.0",
)


@rule.on_function("torch.compile")
def check_call(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    backend = file.argument(call, None, "backend")
    if backend is None or (isinstance(backend, ast.Constant) and backend.value in ("inductor", "cudagraphs")):
        yield _finding(call, file)


@rule.on(ast.FunctionDef)
def check_decorator(function: ast.FunctionDef, file: PythonFile, goal: Goal) -> Findings:
    for decorator in function.decorator_list:
        if file.resolve(decorator) == "torch.compile":
            yield _finding(decorator, file)


def _finding(node: ast.AST, file: PythonFile) -> Finding:
    return rule.finding((file, node), "torch.compile uses its default backend, which needs triton-ascend on NPUs")
