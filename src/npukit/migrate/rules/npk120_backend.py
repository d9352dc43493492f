"""Use the accelerator's communication backend instead of NCCL.

before:           dist.init_process_group("nccl")
after (npu):      dist.init_process_group("hccl")
after (portable): dist.init_process_group("hccl" if hasattr(torch, "npu") else "nccl")

Names in variables, defaults, options and dictionaries are rewritten as well, and so is "cpu:gloo,cuda:nccl".
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.dataflow import BACKEND, flows_into, is_allowed_value
from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.style import Edits, parenthesized_for

rule = Rule(
    "NPK120",
    "nccl-backend",
    words=("nccl", "NCCL"),
    fixes=True,
    why="NCCL runs on CUDA devices only. NPUs communicate through HCCL.",
    remedy='Use "hccl" on NPUs, or torch.distributed.get_default_backend_for_device(device), which fits every device.',
    effort=Effort(15, 5),
)

_LITERAL = re.compile(
    r"""[rRuU]*("{3}|'{3}|"|')(?P<before>(?:\w+:\w+,)*)(?P<pair>(?:cuda:)?nccl)(?P<after>(?:,[\w:,]*)?)\1""",
    re.IGNORECASE,  # torch takes "NCCL", too
)


@rule.on(ast.Constant, says=("nccl", "NCCL"))
def check(node: ast.Constant, file: PythonFile, goal: Goal) -> Findings:
    if isinstance(file.parent(node), ast.JoinedStr):
        return
    match = _LITERAL.fullmatch(file.source(node))
    if not match or not flows_into(node, BACKEND, file) or is_kept(node, file, goal):
        return
    if is_allowed_value(node, file):
        edits: tuple[Edit, ...] = (file.insert(file.span(node)[1], f", {match[1]}hccl{match[1]}"),)
    else:
        edits = _edits(node, match, file, goal)
    yield rule.finding(
        (file, node),
        f"{file.source(node)} runs on CUDA devices only",
        edits=edits,
    )


@rule.on(ast.Attribute, says=("NCCL",))
def member(node: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if isinstance(file.parent(node), (ast.Compare, ast.Dict)):
        return
    if file.resolve(node) != "torch.distributed.Backend.NCCL" or is_kept(node, file, goal):
        return
    backend = style_of(goal).backend(node, file, goal)
    edits = (*backend.edits, file.replace(node, backend.text)) if backend else ()
    yield rule.finding((file, node), "Backend.NCCL runs on CUDA devices only", edits=edits)


def _edits(node: ast.AST, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
    if match["before"] or match["after"] or match["pair"].lower() != "nccl":
        backend = style_of(goal).backends(node, file.source(node), file, goal)
        return (*backend.edits, file.replace(node, parenthesized_for(backend.text, node, file))) if backend else ()
    backend = style_of(goal).backend(node, file, goal)
    return (*backend.edits, file.replace(node, backend.text)) if backend else ()
