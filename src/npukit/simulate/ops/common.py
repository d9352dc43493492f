"""Helpers for reference kernels: widening, gradients by autograd, torch_npu's dtype numbers, rounding to integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_HALVES = (torch.float16, torch.bfloat16)
_AUTOGRAD_KEYS = [
    getattr(torch._C.DispatchKey, name)
    for name in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")
    if hasattr(torch._C.DispatchKey, name)  # torch 2.1 does not name the one for nested tensors
]

# torch's own ScalarType numbers, then 256 + the number of CANN's aclDataType.
_DTYPES: dict[int, torch.dtype] = dict(enumerate((
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.int8, torch.uint8, torch.int32,
    torch.bfloat16,
)))  # fmt: skip
_DTYPES |= {23: torch.float8_e5m2, 24: torch.float8_e4m3fn}
_DTYPES |= {256: torch.float32, 257: torch.float16, 258: torch.int8, 259: torch.int32, 260: torch.uint8}
_DTYPES |= {262: torch.int16, 265: torch.int64, 267: torch.float64, 268: torch.bool, 283: torch.bfloat16}
_DTYPES |= {291: torch.float8_e5m2, 292: torch.float8_e4m3fn}
INT4 = {16, 285}
"""Numbers of the 4-bit integer types: quint4x2 and torch_npu.int4. Eight of them travel in one int32."""


def wide(x: Tensor) -> Tensor:
    """x in fp32 if it is fp16 or bf16: kernels compute in fp32 and round once, as CANN's do."""
    return x.float() if x.dtype in _HALVES else x


def wide_or_none(x: Tensor | None) -> Tensor | None:
    """`wide` of an optional tensor."""
    return None if x is None else wide(x)


def gradients(
    function: Callable[..., Any], inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor] | Tensor
) -> tuple[Tensor, ...]:
    """The vector-Jacobian product of a plain formula. Inputs that it does not use get zeros.

    Kernels run below autograd, so autograd's dispatch keys are re-enabled for the duration of the call.

    >>> gradients(torch.sin, [torch.zeros(2)], torch.ones(2))
    (tensor([1., 1.]),)
    """
    excluded = [key for key in _AUTOGRAD_KEYS if torch._C._dispatch_tls_is_dispatch_key_excluded(key)]
    for key in excluded:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            grads = torch.autograd.grad(function(*leaves), leaves, grad_outputs, allow_unused=True)
    finally:
        for key in excluded:
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, True)
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True))


def dtype_of(number: int | torch.dtype | None, default: torch.dtype = torch.int8) -> torch.dtype:
    """The torch dtype for a number that torch_npu's operators accept: torch's own numbers, or 256 + CANN's.

    The dispatcher passes a dtype as its number, too, so every dtype argument of a kernel goes through this function.

    >>> dtype_of(5), dtype_of(291)
    (torch.float16, torch.float8_e5m2)
    """
    if number is None:
        return default
    if isinstance(number, torch.dtype):
        return number
    if number not in _DTYPES:
        raise NotImplementedError(f"The simulated NPU does not compute dtype number {number}; use int8 or a float.")
    return _DTYPES[number]


def largest(dtype: torch.dtype) -> float:
    """The largest value that a quantized dtype holds."""
    return float(torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max)


def quantized(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to the nearest (half to even) and saturated, in an integer or fp8 dtype."""
    if dtype.is_floating_point:
        return x.clamp(-largest(dtype), largest(dtype)).to(dtype)
    return x.round().clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max).to(dtype)


def pack_int4(x: Tensor) -> Tensor:
    """Eight neighbours of the last dimension in one int32, the first in the lowest bits."""
    nibbles = x.to(torch.int64).bitwise_and(15).unflatten(-1, (-1, 8))
    packed = (nibbles << torch.arange(0, 32, 4, device=x.device)).sum(-1)
    return packed.to(torch.int32)


def unpack_int4(x: Tensor) -> Tensor:
    """The inverse of `pack_int4`, as int8."""
    nibbles = (x.unsqueeze(-1) >> torch.arange(0, 32, 4, device=x.device)).bitwise_and(15).flatten(-2)
    return torch.where(nibbles > 7, nibbles - 16, nibbles).to(torch.int8)


def quantized_by(y: Tensor, scale: Tensor, offset: Tensor | None, div_mode: bool, dtype_number: int | None) -> Tensor:
    """y / scale (or y * scale) + offset, rounded and saturated; packed by eight when the type is a 4-bit one."""
    y = y / wide(scale) if div_mode else y * wide(scale)
    y = y if offset is None else y + offset.float()
    if dtype_number in INT4:
        return pack_int4(y.round().clamp(-8, 7))
    return quantized(y, dtype_of(dtype_number))


def row_quantized(y: Tensor, dtype_number: int | None) -> tuple[Tensor, Tensor]:
    """y by rows of the last dimension so that the largest becomes the dtype's largest; and the scale to undo it."""
    top = 7.0 if dtype_number in INT4 else largest(dtype_of(dtype_number))
    scale = y.abs().amax(-1) / top
    return quantized_by(y, torch.where(scale == 0, 1.0, scale).unsqueeze(-1), None, True, dtype_number), scale


def group_of_rows(group_list: Tensor, rows: int, counts: bool) -> Tensor:
    """The group that each row belongs to, from the groups' sizes (counts) or their ends; later rows get len(groups)."""
    ends = group_list.cumsum(0) if counts else group_list
    return torch.searchsorted(ends.contiguous(), torch.arange(rows, device=ends.device, dtype=ends.dtype), right=True)
