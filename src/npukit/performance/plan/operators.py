"""The work of an operator, computed from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from npukit.performance.plan.work import Kind

FREE = {
    "aten::detach",
    "aten::alias",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::set_",
    "aten::resize_",
    "aten::_local_scalar_dense",
    "aten::lift_fresh",
    "aten::is_pinned",
    "aten::record_stream",
}
# Operators that torch_npu differentiates as a whole; other backends decompose them first.
WHOLE: dict[str, Callable[[Any, Any], float]] = {
    "aten::matmul": lambda args, result: 2.0 * result.numel() * args[0].shape[-1],
    "aten::matmul_backward": lambda args, _: 2.0 * args[0].numel() * args[1].shape[-1] * sum(args[3]),
}
FP32_FACTOR = 4  # matrix units take about four times as long for fp32
BACKWARD_OF_ATTENTION = 2.5  # times the forward pass


def kind_of(func: Any) -> Kind | None:
    """The kind of work; None for operators without work, such as views.

    >>> kind_of(torch.ops.aten.mm.default)
    'matmul'
    """
    name = func._schema.name
    if name in FREE or getattr(func, "is_view", False) or name.startswith(("profiler::", "npu::get_", "prim::")):
        return None
    if "attention" in name:
        return "attention"
    return "matmul" if name in WHOLE or func._overloadpacket in flop_registry else "vector"


def flops_of(func: Any, args: Any, kwargs: Any, result: Any) -> float:
    """Floating-point operations, in terms of the device's 16-bit peak."""
    if "attention" in func._schema.name:
        return _attention(func, args, kwargs)
    factor = FP32_FACTOR if any(isinstance(argument, Tensor) and argument.itemsize == 4 for argument in args) else 1
    if whole := WHOLE.get(func._schema.name):
        return whole(args, result) * factor
    return float(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)) * factor


def moved_bytes(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> float:
    """The bytes read and written. An expanded tensor counts with its actual size."""
    return float(
        sum(min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()) for tensor in (*inputs, *outputs))
    )


def _attention(func: Any, args: Any, kwargs: Any) -> float:
    """Two products of [queries, keys] per head, halved because a language model only looks back."""
    by_name = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    query, key = by_name["query"], by_name["key"]
    layout = by_name.get("input_layout", "BNSD")
    if layout == "TND":
        ends = by_name.get("actual_seq_qlen") or [query.shape[0]]
        starts = [0, *ends[:-1]]
        pairs = sum((end - start) ** 2 for start, end in zip(starts, ends, strict=True)) * query.shape[1]
        width = query.shape[2]
    elif layout in ("BSH", "SBH"):
        batch, length = (0, 1) if layout == "BSH" else (1, 0)
        pairs, width = query.shape[batch] * query.shape[length] * key.shape[length], query.shape[2]
    else:
        heads, length = (1, 2) if layout == "BNSD" else (2, 1)
        pairs = query.shape[0] * query.shape[heads] * query.shape[length] * key.shape[length]
        width = query.shape[3]
    backward = BACKWARD_OF_ATTENTION if "grad" in func._schema.name or "backward" in func._schema.name else 1.0
    return float(2 * pairs * width * backward)
