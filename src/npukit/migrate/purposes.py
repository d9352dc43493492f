"""What a piece of code is for: CUDA alone, or any device."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from npukit.migrate.cuda_only import always_run, leads_to_cuda, names_kernel, says_cuda
from npukit.source import PythonFile


def is_for_cuda(region: Sequence[ast.AST], file: PythonFile) -> bool:
    """Whether a group of nodes always does what only CUDA can."""
    found = (node for each in region for node in always_run(each))
    return any(
        says_cuda(node) or leads_to_cuda(node, file) or _is_layout(node) or _is_fused_beside_a_scaler(node, file)
        for node in found
    )


def is_for_any(region: Sequence[ast.AST], file: PythonFile) -> bool:
    """Whether a group of nodes does what NPUs do as well; what an empty one does is not known."""
    found = [node for each in region for node in always_run(each)]
    if any(says_cuda(node) or names_kernel(node, file) for node in found):
        return False
    return not region or any(
        (isinstance(node, ast.Attribute) and node.attr in ("cuda", "to") and not _sets_layout(node, file))
        or (isinstance(node, ast.Constant) and str(node.value).startswith("cuda"))
        for node in found
    )


def _is_fused_beside_a_scaler(node: ast.AST, file: PythonFile) -> bool:
    """{"fused": True}, an optimizer that torch_npu's own GradScaler cannot step"""
    is_fused = (isinstance(node, ast.Constant) and node.value == "fused") or getattr(node, "arg", "") == "fused"
    return is_fused and "npu.amp.GradScaler" in file.text


def _is_layout(node: ast.AST) -> bool:
    """torch.channels_last, which torch_npu refuses; other code beside it may well be for NPUs."""
    return isinstance(node, ast.Attribute) and node.attr.startswith("channels_last")


def _sets_layout(node: ast.Attribute, file: PythonFile) -> bool:
    """model.to(memory_format=torch.channels_last), which moves nothing."""
    call = file.parent(node)
    return isinstance(call, ast.Call) and not call.args and [each.arg for each in call.keywords] == ["memory_format"]
