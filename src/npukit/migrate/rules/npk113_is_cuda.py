"""Replace Tensor.is_cuda.

before:           if x.is_cuda: ...
after (npu):      if x.is_npu: ...
after (portable): if x.device.type in ("cuda", "npu"): ...
"""

from __future__ import annotations

import ast

from npukit.migrate.decision import is_kept, why_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.styles import style_of
from npukit.migrate.styles.npu import import_torch_npu
from npukit.migrate.styles.style import quote_near

rule = Rule(
    "NPK113",
    "is-cuda",
    words=("is_cuda",),
    fixes=True,
    why="The condition is false on an NPU, so the wrong branch runs.",
    remedy='Check the device type instead: x.device.type in ("cuda", "npu").',
    effort=Effort(15, 5),
)


@rule.on(ast.Attribute, says=("is_cuda",))
def check(node: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(node.ctx, ast.Load) or is_kept(node, file, goal):
        return
    reason = why_kept(node, file)
    end = file.span(node)[1]
    old = Edit(end - len("is_cuda"), end, "is_npu")
    edits = style_of(goal).choose(_with_npus(node, file), (*import_torch_npu(file), old), file)
    yield rule.finding(
        (file, node),
        "is_cuda is False for a tensor on an NPU",
        why=reason,
        remedy="Check that the other branch is right on an NPU." if reason else "",
        edits=() if reason else edits,
        severity=Severity.note if reason else None,
    )


def _with_npus(node: ast.Attribute, file: PythonFile) -> tuple[Edit, ...]:
    (start, inner), end, parent = file.span(node.value), file.span(node)[1], file.parent(node)
    both = '("cuda", "npu")'.replace('"', quote_near(node, file))
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        return Edit(file.span(parent)[0], start, ""), Edit(inner, end, f".device.type not in {both}")
    new = Edit(inner, end, f".device.type in {both}")
    binds_tighter = isinstance(parent, (ast.Compare, ast.BinOp, ast.UnaryOp, ast.Attribute, ast.Subscript, ast.Starred))
    return (file.insert(start, "("), new, file.insert(end, ")")) if binds_tighter else (new,)
