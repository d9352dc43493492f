"""Rotary position embedding written out.

bad:
    def rotate(q, cos, sin):
        return (q * cos) + (rotate_half(q) * sin)

good:
    import torch_npu
    def rotate(q, cos, sin):
        return torch_npu.npu_rotary_mul(q, cos, sin)
"""

from __future__ import annotations

import ast

from npukit.facts.affinity import fused
from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK604",
    "rotary-by-hand",
    words=("rotate",),
    severity=Severity.note,
    why="It takes six operators on queries and keys in every layer.",
    remedy="Call torch_npu.npu_rotary_mul on NPUs.",
)


@rule.on(ast.BinOp)
def check(total: ast.BinOp, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(total.op, ast.Add):
        return
    sides = [
        side for side in (total.left, total.right) if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
    ]
    texts = [file.source(side) for side in sides]
    written_out = len(texts) == 2 and "cos" in texts[0] and "sin" in texts[1] and "rotate" in texts[1]
    if written_out and (instead := fused("rotary", goal.target)):
        yield rule.finding((file, total), "rotary position embedding is written out", remedy=instead.advice)
