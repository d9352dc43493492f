"""Computations for which NPUs have a fused operator (facts/affinity.yaml): attention (NPK601), RMSNorm (NPK602), gated
activations (NPK603), rotary embedding (NPK604), Adam (NPK605).
"""

from __future__ import annotations

import ast

from npukit.facts.affinity import fused
from npukit.migrate.rule import Findings, Goal, PythonFile, described
from npukit.migrate.training import has_double_star, inside, method
from npukit.source.nodes import last_name

_MATMULS = {"matmul", "bmm", "einsum", "baddbmm"}
_TURNS = ("transpose", ".mT", ".T", "permute", "einsum")
_GATES = {"torch.nn.functional.silu": ("swiglu", "SwiGLU"), "torch.nn.functional.gelu": ("geglu", "GEGLU")}


def _report(code: str, pattern: str, node: ast.AST, what: str, file: PythonFile, goal: Goal) -> Findings:
    """Report code if the target's torch_npu has the operator for it."""
    if instead := fused(pattern, goal.target):
        yield described(code).finding((file, node), what, remedy=instead.advice)


@described("NPK601").on_call(("softmax",))
def attention(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    around = file.function(call)
    if last_name(call.func) != "softmax" or "scaled_dot_product_attention" in file.source(around):
        return
    products = [node for node in inside(around) if _is_matmul(node)]
    before = [product for product in products if product.lineno <= call.lineno and _turns_keys(product, file)]  # type: ignore[attr-defined]
    after = [product for product in products if product.end_lineno >= call.lineno and product not in before]  # type: ignore[attr-defined]
    if before and after:
        yield from _report("NPK601", "attention", call, "attention is written out", file, goal)


def _is_matmul(node: ast.AST) -> bool:
    return (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)) or method(node) in _MATMULS


def _turns_keys(node: ast.AST, file: PythonFile) -> bool:
    return any(word in file.source(node) for word in _TURNS)


@described("NPK602").on_call(("rsqrt",))
def rms_norm(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    around = file.function(call)
    if method(call) == "rsqrt" and not isinstance(around, ast.Module) and any(map(_mean_of_squares, inside(around))):
        yield from _report("NPK602", "rms_norm", call, "RMSNorm is written out", file, goal)


def _mean_of_squares(node: ast.AST) -> bool:
    if method(node) != "mean" or not isinstance(node, ast.Call) or not _over_the_last(node):
        return False
    squared = node.args[0] if not isinstance(node.func, ast.Attribute) else node.func.value
    if isinstance(squared, ast.Name) and node.args:
        squared = node.args[0]  # torch.mean(x ** 2)
    if isinstance(squared, ast.BinOp):
        return isinstance(squared.op, ast.Pow) and _is_two(squared.right)
    power = squared.args[-1] if isinstance(squared, ast.Call) and squared.args else None
    return method(squared) == "square" or (method(squared) == "pow" and _is_two(power))


def _over_the_last(mean: ast.Call) -> bool:
    dims = [*mean.args, *(keyword.value for keyword in mean.keywords if keyword.arg == "dim")]
    return any(isinstance(dim, ast.UnaryOp) and ast.unparse(dim) == "-1" for dim in dims)


def _is_two(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == 2


@described("NPK603").on(ast.BinOp)
def gated_activation(product: ast.BinOp, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(product.op, ast.Mult):
        return
    for gate, other in ((product.left, product.right), (product.right, product.left)):
        known = _GATES.get(file.resolve(gate.func) or "") if isinstance(gate, ast.Call) else None
        if known and not isinstance(other, ast.Constant):
            yield from _report("NPK603", known[0], product, f"{known[1]} is written out", file, goal)
            return


@described("NPK604").on(ast.BinOp)
def rotary(total: ast.BinOp, file: PythonFile, goal: Goal) -> Findings:
    sides = (total.left, total.right) if isinstance(total.op, ast.Add) else ()
    texts = [file.source(side) for side in sides if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)]
    if len(texts) == 2 and "cos" in texts[0] and "sin" in texts[1] and "rotate" in texts[1]:
        yield from _report("NPK604", "rotary", total, "rotary position embedding is written out", file, goal)


@described("NPK605").on_function("torch.optim.Adam", "torch.optim.AdamW")
def optimizer(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    chosen = any(keyword.arg in ("fused", "foreach", "capturable") for keyword in call.keywords)
    if not chosen and not has_double_star(call):
        yield from _report("NPK605", "adamw", call, "the optimizer is not fused", file, goal)
