"""GroupNorm followed by SiLU, as in diffusion models.

bad:
    import torch.nn as nn
    block = nn.Sequential(nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 64, 3))

good:
    import torch.nn as nn
    block = nn.Sequential(nn.GroupNorm(32, 64), nn.ReLU(), nn.Conv2d(64, 64, 3))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from npukit.facts.affinity import fused
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK606",
    "group-norm-silu",
    words=("GroupNorm",),
    needs=("torch",),
    severity=Severity.note,
    why="Each of the two reads and writes the whole feature map.",
    remedy="Call torch_npu.npu_group_norm_silu on NPUs, for inference: it has no gradient.",
)


@rule.on_call(("Sequential",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if file.resolve(call.func) != "torch.nn.Sequential":
        return
    names = [file.resolve(argument.func) if isinstance(argument, ast.Call) else None for argument in call.args]
    for norm, activation in pairwise(names):
        instead = fused("group_norm_silu", goal.target)
        if norm == "torch.nn.GroupNorm" and activation == "torch.nn.SiLU" and instead:
            yield rule.finding((file, call), "GroupNorm and SiLU can be fused for inference", remedy=instead.advice)
            return
