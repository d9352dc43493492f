"""TorchScript compilation.

Scripted code runs on NPUs without the fusion that it was written for, and torch_npu's automatic migration disables
torch.jit.script.

bad:
    import torch
    @torch.jit.script
    def gelu(x):
        return x * torch.sigmoid(1.702 * x)

good:
    import torch
    def gelu(x):
        return x * torch.sigmoid(1.702 * x)
"""

from __future__ import annotations

import ast

from npukit.migrate.lookup import may_refer_to
from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK711",
    "jit-script",
    words=("jit",),
    needs=("torch",),
    severity=Severity.note,
    why="The fuser generates code for CUDA and CPU only, so scripted operators run one by one.",
    remedy="Remove it, or use a fused function of torch.nn.functional.",
)

_NAMES = {"torch.jit.script", "torch.jit.script_if_tracing", "torch.jit.script_method"}
_LAST_NAMES = frozenset(name.rpartition(".")[2] for name in _NAMES)


@rule.on(ast.Attribute, ast.Name)
def check(name: ast.Attribute | ast.Name, file: PythonFile, goal: Goal) -> Findings:
    if isinstance(name.ctx, ast.Load) and may_refer_to(name, _LAST_NAMES, file) and file.resolve(name) in _NAMES:
        yield rule.finding((file, name), "TorchScript does not fuse operators on NPUs")
