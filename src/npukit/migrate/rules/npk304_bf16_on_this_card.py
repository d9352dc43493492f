"""bfloat16 on a card that does not support it.

bad (card=910A):
    import torch
    model = model.to(torch.bfloat16)

good (card=910A):
    import torch
    model = model.to(torch.float16)
"""

from __future__ import annotations

import ast

from npukit.facts.cards import card
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule

rule = Rule(
    "NPK304",
    "bf16-on-this-card",
    words=("bfloat16",),
    why="Older cards have no bfloat16 units.",
    remedy="Use float16 with a GradScaler, or float32.",
    effort=Effort(45, 10),
)


@rule.on(ast.Attribute, says=("bfloat16",))
def check_name(name: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if card(goal.target.card).bf16:
        return
    used = isinstance(file.parent(name), (ast.Call, ast.keyword, ast.Assign)) and file.resolve(name) == "torch.bfloat16"
    called = isinstance(file.parent(name), ast.Call) and file.resolve(name) is None
    if used or called:
        yield rule.finding((file, name), f"{goal.target.card} does not support bfloat16")
