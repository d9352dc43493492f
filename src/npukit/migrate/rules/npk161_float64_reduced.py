"""Reduce in float32: HCCL does not reduce float64.

before:           t = torch.ones(1, dtype=torch.float64); dist.all_reduce(t)
after (npu):      t = torch.ones(1, dtype=torch.float32); dist.all_reduce(t)
after (portable): t = torch.ones(1, dtype=torch.float32 if hasattr(torch, "npu") else torch.float64); dist.all_reduce(t)

Only tensors that are created with an explicit type in the same function are changed. Counts stay exact up to 16
million. A tensor that values are added to before it is reduced, or that holds times, is reported: it has its precision
for a reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.style import quote_near, torch_name
from npukit.source.nodes import last_name

rule = Rule(
    "NPK161",
    "float64-reduced",
    words=("all_reduce", "reduce_scatter", ".reduce("),
    fixes=True,
    why='HCCL raises "Unsupported data type at::kDouble".',
    remedy="Reduce in float32.",
    effort=Effort(15, 5),
    supersedes=("NPK709",),
)

_NAMES = ("all_reduce", "reduce", "reduce_scatter_tensor")
_REDUCE = tuple(f"torch.distributed.{name}" for name in _NAMES)
_TIMES = re.compile(r"time|stamp", re.IGNORECASE)
_FLOAT64 = ("torch.float64", "torch.double")


@rule.on_call(_NAMES)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    reductions = list(_doubles(call, file))
    if not reductions or is_kept(call, file, goal):
        return
    function = file.function(call)
    beside = (other for other in file.of_type(ast.Call) if file.function(other) is function)
    can_all = all(can for other in beside for _, can in _doubles(other, file))
    for doubles, _ in reductions:  # one of two in float32 would help nobody
        edits = [edit for dtype in doubles for edit in _in_float32(dtype, file, goal)] if can_all else ()
        yield rule.finding((file, doubles[0]), "HCCL does not reduce float64", edits=edits)


def _doubles(call: ast.Call, file: PythonFile) -> Iterator[tuple[list[ast.expr], bool]]:
    """Yield the float64 types of tensors that a call reduces, and whether float32 would do."""
    name = call.args[0] if call.args else None
    if last_name(call.func) not in _NAMES or not isinstance(name, ast.Name):
        return
    for binding in file.bindings(name) if file.resolve(call.func) in _REDUCE else ():
        made = binding.value
        either = [made.body, made.orelse] if isinstance(made, ast.IfExp) else [made]
        types = [file.argument(value, None, "dtype") if isinstance(value, ast.Call) else None for value in either]
        doubles = [dtype for dtype in types if dtype is not None and file.resolve(dtype) in _FLOAT64]
        if doubles:
            yield doubles, len(doubles) == len(either) and not _is_exact(name.id, doubles, call, file)


def _is_exact(name: str, doubles: list[ast.expr], call: ast.Call, file: PythonFile) -> bool:
    """Return whether a tensor needs its precision, because it accumulates values (sigma += x.T @ x) or holds times."""
    made = [file.parent(file.parent(dtype) or dtype) or dtype for dtype in doubles]
    return any(_TIMES.search(file.source(node)) for node in made) or any(
        isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name
        for node in ast.walk(file.function(call))
    )


def _in_float32(dtype: ast.expr, file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    """Return the edits that choose float32 on NPUs. CUDA keeps its type."""
    old = file.source(dtype)
    new = old.replace("float64", "float32").replace("double", "float32")
    npu = '"npu"'.replace('"', quote_near(dtype, file))
    chosen = f"{new} if hasattr({torch_name(file).text}, {npu}) else {old}"
    return style_of(goal).choose([file.replace(dtype, chosen)], [file.replace(dtype, new)], file)
