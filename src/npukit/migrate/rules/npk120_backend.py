"""Use the accelerator's communication backend instead of NCCL.

before:           dist.init_process_group("nccl")
after (npu):      dist.init_process_group("hccl")
after (portable): dist.init_process_group(dist.get_default_backend_for_device(DEVICE))

Names in variables, defaults, options and dictionaries are rewritten as well, and so is "cpu:gloo,cuda:nccl".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Phase, Rule
from npukit.migrate.sinks import BACKEND, reaches
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK120",
    "nccl-backend",
    words=("nccl",),
    fixes=True,
    phase=Phase.rewrite,
    why="NCCL runs on CUDA devices only. NPUs communicate through HCCL.",
    remedy="Use the backend of the accelerator.",
    effort=Effort(15, 5),
)

_LITERAL = re.compile(
    r"""[rRuU]*("{3}|'{3}|"|')(?P<before>(?:\w+:\w+,)*)(?P<pair>(?:cuda:)?nccl)(?P<after>[\w:,]*)\1"""
)


@rule.on(ast.Constant)
def check(node: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not isinstance(node.value, str) or "nccl" not in node.value or isinstance(file.parent(node), ast.JoinedStr):
        return
    match = _LITERAL.fullmatch(file.source(node))
    if not match or not reaches(node, BACKEND, file) or writing.serves_npu_already(node, file):
        return
    if _is_choice(node, file):
        edits: tuple[Edit, ...] = (file.insert(file.span(node)[1], f", {match[1]}hccl{match[1]}"),)
    else:
        edits = (_portable if goal.portable else _npu)(node, match, file, goal)
    yield rule.finding(
        (file, node),
        f"{file.source(node)} runs on CUDA devices only",
        remedy="Use the backend of the accelerator." if goal.portable else 'Use "hccl".',
        edits=edits,
    )


@rule.on(ast.Attribute)
def member(node: ast.Attribute, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if node.attr != "NCCL" or isinstance(file.parent(node), (ast.Compare, ast.Dict)):
        return
    if file.resolve(node) != "torch.distributed.Backend.NCCL" or writing.serves_npu_already(node, file):
        return
    end = file.span(node)[1]
    edits = (*writing.import_torch_npu(file), Edit(end - len("NCCL"), end, "HCCL"))
    if goal.portable:
        backend = writing.default_backend(file, goal)
        edits = (*backend.edits, file.replace(node, backend.text))
    yield rule.finding((file, node), "Backend.NCCL runs on CUDA devices only", edits=edits)


def _npu(node: ast.AST, match: re.Match[str], file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    start = file.span(node)[0]
    new = match["pair"].replace("cuda:", "npu:").replace("nccl", "hccl")
    return (*writing.import_torch_npu(file), Edit(start + match.start("pair"), start + match.end("pair"), new))


def _portable(node: ast.AST, match: re.Match[str], file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    name = writing.device(file, goal)
    backend = writing.default_backend(file, goal).text
    if match["before"] or match["after"] or match["pair"] != "nccl":
        quote = match[1]
        pair = f"{{{name.text}.type}}:{{{backend}}}"
        text = f"f{quote}{match['before']}{pair}{match['after']}{quote}"
        return (*name.edits, file.replace(node, text))
    return (*name.edits, file.replace(node, backend))


def _is_choice(node: ast.AST, file: PythonFile) -> bool:
    around = file.parent(node)
    keyword = file.parent(around) if isinstance(around, (ast.List, ast.Tuple, ast.Set)) else None
    return isinstance(keyword, ast.keyword) and keyword.arg == "choices"
