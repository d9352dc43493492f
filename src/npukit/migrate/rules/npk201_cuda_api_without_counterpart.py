"""torch.cuda names without a counterpart in torch.npu.

bad:
    import torch
    torch.cuda.nvtx.range_push("forward")

good:
    import torch
    with torch.profiler.record_function("forward"):
        pass
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.facts.cuda_apis import CudaApi, cuda_api, last_names
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Phase, Rule
from npukit.migrate.training import tolerates_failure
from npukit.migrate.writing import may_be
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK201",
    "cuda-api-without-counterpart",
    words=("cuda", "nvtx", "NCCL"),
    severity=Severity.error,
    phase=Phase.rewrite,
    why="torch.npu does not provide this function.",
    remedy="Replace or remove it.",
    effort=Effort(20, 5),
    supersedes=(
        "NPK101",
        "NPK102",
        "NPK103",
    ),
)


def _may_be_known(node: ast.expr, file: PythonFile) -> bool:
    """Whether a part of the chain is a name that there are facts about: to resolve every name takes long."""
    while isinstance(node, ast.Attribute):
        if node.attr in last_names():
            return True
        node = node.value
    return may_be(node, last_names(), file)


def used_api(node: ast.Attribute | ast.Name, file: PythonFile) -> CudaApi | None:
    """The fact about the whole dotted name that is read here; None for a part of a longer name."""
    is_read = isinstance(node.ctx, ast.Load)
    is_switch = isinstance(node.ctx, ast.Store) and isinstance(node, ast.Attribute)
    if not (is_read or is_switch) or isinstance(file.parent(node), ast.Attribute) or not _may_be_known(node, file):
        return None
    name = file.resolve(node)
    return cuda_api(name) if name and name.startswith("torch.") else None


@rule.on(ast.Attribute, ast.Name)
def check(node: ast.Attribute | ast.Name, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    api = used_api(node, file)
    if api and api.kind == "none":
        yield rule.finding(
            (file, node),
            f"{api.name} has no counterpart on NPUs",
            why=api.why,
            remedy=api.remedy,
            severity=Severity.note if tolerates_failure(node, file) else None,
        )
