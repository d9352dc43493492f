"""Gradients clipped before they are unscaled.

bad:
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)

good:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import blocks_around, inside, method
from npukit.source.nodes import last_name

rule = Rule(
    "NPK706",
    "clip-before-unscale",
    words=("clip_grad",),
    severity=Severity.warning,
    why="The gradients are still multiplied by the loss scale, so the threshold is wrong by that factor.",
    remedy="Call scaler.unscale_(optimizer) before clipping.",
    effort=Effort(10, 3),
)


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = last_name(call.func)
    if not name.startswith(("clip_grad_norm", "clip_grad_value")):
        return
    statements = blocks_around(call, file)
    before = [
        node
        for node in inside(file.function(call))
        if isinstance(node, ast.Call) and node.lineno <= call.lineno and node is not call
    ]
    scaled = [
        node
        for node in before
        if method(node) == "backward"
        and isinstance(node.func, ast.Attribute)
        and method(node.func.value) == "scale"
        and file.statement(node) in statements
    ]
    if scaled and not any(method(node) == "unscale_" and node.lineno >= scaled[-1].lineno for node in before):
        yield rule.finding((file, call), "gradients are clipped while they are still scaled")
