"""Sparse tensors on NPUs.

Moving a sparse tensor to an NPU works, and so does adding two of them. Multiplying one fails. Sparse tensors that stay
on the CPU are not affected.

bad:
    import torch
    graph = matrix.to_sparse().to(device)

good:
    import torch
    graph = matrix.to(device)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK306",
    "sparse-tensor",
    words=("sparse",),
    severity=Severity.warning,
    why="torch_npu implements neither products nor softmax of sparse tensors (aten::addmm, aten::_sparse_softmax).",
    remedy="Keep the tensor dense, use index_add or scatter_reduce, or run this part on the CPU.",
    effort=Effort(45, 10),
)

_METHODS = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr")
_FUNCTIONS = tuple(f"torch.sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "compressed"))


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = file.resolve(call.func) or ""
    if method in _METHODS or name in _FUNCTIONS or name.startswith("torch.sparse."):
        yield rule.finding((file, call), "sparse tensors cannot be multiplied on NPUs")
