"""Sparse tensors: torch_npu has hardly an operator for them.

Making one and moving it to an NPU works; a product with it fails. Sparse tensors that stay on the CPU are not concerned.

bad:
    import torch
    graph = matrix.to_sparse().to(device)

good:
    import torch
    graph = matrix.to(device)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.rule import Rule
from npukit.migrate.target import Target
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule("NPK306", "sparse-tensor", words=("sparse",), severity=Severity.warning)

_METHODS = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr")
_FUNCTIONS = tuple(f"torch.sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "compressed"))


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, target: Target) -> Iterator[Finding]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = file.resolve(call.func) or ""
    if method in _METHODS or name in _FUNCTIONS or name.startswith("torch.sparse."):
        yield rule.finding(
            (file, call),
            "sparse tensors do not compute on NPUs",
            why="torch_npu 2.13 refuses the products of sparse tensors (aten::addmm, mm), and most of their operators.",
            remedy="Keep it dense, or gather and add by index (index_add, scatter_reduce); or leave that part on the CPU.",
        )
