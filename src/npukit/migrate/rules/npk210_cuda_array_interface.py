"""Tensors that are handed to CuPy or Numba by the interface of CUDA arrays.

bad:
    import torch
    pointer = x.__cuda_array_interface__["data"][0]

good:
    import torch
    pointer = x.data_ptr()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.decision import stays
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK210",
    "cuda-array-interface",
    words=("__cuda_array_interface__",),
    severity=Severity.warning,
    why="A tensor that is not on a CUDA device raises an AttributeError.",
    remedy="Use data_ptr() for the address, or x.cpu().numpy() to share the values with other libraries.",
    effort=Effort(20, 10),
)


@rule.on(ast.Attribute, says=("__cuda_array_interface__",))
def check(node: ast.Attribute, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if isinstance(node.ctx, ast.Load) and not stays(node, file, goal):
        yield rule.finding((file, node), "tensors on an NPU have no __cuda_array_interface__")
