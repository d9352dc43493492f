"""Attention written out as matmul, softmax, matmul.

bad:
    import torch
    import torch.nn.functional as F
    def attend(q, k, v):
        scores = q @ k.transpose(-2, -1) / 8
        return F.softmax(scores, dim=-1) @ v

good:
    import torch
    import torch.nn.functional as F
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)
"""

from __future__ import annotations

import ast

from npukit.facts.affinity import fused
from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import inside, method
from npukit.source.nodes import last_name

rule = Rule(
    "NPK601",
    "attention-by-hand",
    words=("softmax",),
    severity=Severity.note,
    why="The full score matrix is kept in memory, and every operator reads and writes it.",
    remedy="Call torch.nn.functional.scaled_dot_product_attention, which becomes NPU flash attention.",
)

_MATMULS = {"matmul", "bmm", "einsum", "baddbmm"}


@rule.on_call(("softmax",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = last_name(call.func)
    if name != "softmax" or "scaled_dot_product_attention" in file.source(file.function(call)):
        return
    products = [node for node in inside(file.function(call)) if _is_matmul(node)]
    before = [product for product in products if product.lineno <= call.lineno and _turns_keys(product, file)]  # type: ignore[attr-defined]
    after = [product for product in products if product.end_lineno >= call.lineno and product not in before]  # type: ignore[attr-defined]
    if before and after and (instead := fused("attention", goal.target)):
        yield rule.finding((file, call), "attention is written out", remedy=instead.advice)


def _is_matmul(node: ast.AST) -> bool:
    return (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)) or (
        isinstance(node, ast.Call) and method(node) in _MATMULS
    )


def _turns_keys(node: ast.AST, file: PythonFile) -> bool:
    text = file.source(node)
    return any(word in text for word in ("transpose", ".mT", ".T", "permute", "einsum"))
