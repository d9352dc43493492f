"""A gated activation (SwiGLU, GEGLU) written out.

bad:
    import torch.nn.functional as F
    def mlp(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

good:
    import torch_npu
    def mlp(self, x):
        return self.down(torch_npu.npu_swiglu(self.gate_up(x)))
"""

from __future__ import annotations

import ast

from npukit.facts.affinity import fused
from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK603",
    "gated-activation-by-hand",
    words=("silu", "gelu"),
    severity=Severity.note,
    why="The activation and the product each read and write the widest tensor of the layer.",
    remedy="Call torch_npu.npu_swiglu or npu_geglu on NPUs.",
)

_GATES = {"torch.nn.functional.silu": "swiglu", "torch.nn.functional.gelu": "geglu"}


@rule.on(ast.BinOp)
def check(product: ast.BinOp, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(product.op, ast.Mult):
        return
    for gate, other in ((product.left, product.right), (product.right, product.left)):
        pattern = _GATES.get(file.resolve(gate.func) or "") if isinstance(gate, ast.Call) else None
        instead = fused(pattern, goal.target) if pattern else None
        if instead and not isinstance(other, ast.Constant):
            yield rule.finding(
                (file, product), f"{'SwiGLU' if pattern == 'swiglu' else 'GEGLU'} is written out", remedy=instead.advice
            )
            return
