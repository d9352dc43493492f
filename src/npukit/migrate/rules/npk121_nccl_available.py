"""Check for the accelerator's backend instead of NCCL.

before:           ok = dist.is_nccl_available()
after (npu):      ok = dist.is_backend_available("hccl")
after (portable): ok = dist.is_backend_available("hccl" if hasattr(torch, "npu") else "nccl")
"""

from __future__ import annotations

import ast

from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of

rule = Rule(
    "NPK121",
    "nccl-available",
    words=("is_nccl_available",),
    fixes=True,
    why="NPUs communicate through HCCL, so the code falls back to a slower backend.",
    remedy='Ask for the backend that is used: torch.distributed.is_backend_available("hccl") on NPUs.',
    effort=Effort(15, 5),
)


@rule.on_function("torch.distributed.is_nccl_available")
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if is_kept(call, file, goal):
        return
    backend = style_of(goal).backend(call, file, goal)
    edits: tuple[Edit, ...] = ()
    if backend and isinstance(call.func, ast.Attribute):
        asked = f"{file.source(call.func.value)}.is_backend_available({backend.text})"
        edits = (*backend.edits, file.replace(call, asked))
    yield rule.finding((file, call), "is_nccl_available() is False on NPUs", edits=edits)
