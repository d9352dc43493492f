"""Activations and gated linear units, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import (
    dtype_of,
    gradients,
    group_of_rows,
    quantized,
    quantized_by,
    row_quantized,
    wide,
    wide_or_none,
)
from npukit.simulate.ops.registry import kernel


def _swiglu(x: Tensor, dim: int) -> Tensor:
    gate, value = x.chunk(2, dim)
    return F.silu(gate) * value


@kernel("npu_swiglu")
def swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) * second half of `dim`."""
    return _swiglu(wide(x), dim).to(x.dtype)


@kernel("npu_swiglu_backward")
def swiglu_backward(grad: Tensor, x: Tensor, dim: int = -1) -> Tensor:
    """Gradient of both halves, joined again."""
    gate, value = wide(x).chunk(2, dim)
    sigmoid, upstream = gate.sigmoid(), wide(grad)
    dgate = upstream * value * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((dgate, upstream * gate * sigmoid), dim).to(x.dtype)


def _geglu(x: Tensor, dim: int, approximate: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    left, right = x.chunk(2, dim)
    active, other = (left, right) if activate_left else (right, left)
    gelu = F.gelu(active, approximate="tanh" if approximate == 1 else "none")
    return other * gelu, gelu


@kernel("npu_geglu")
def geglu(x: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """(left * gelu(right), gelu(right)), or the halves swapped; approximate 1 is the tanh form, 0 the exact one."""
    y, gelu = _geglu(wide(x), dim, approximate, activate_left)
    return y.to(x.dtype), gelu.to(x.dtype)


@kernel("npu_geglu_grad")
def geglu_grad(
    grad: Tensor, x: Tensor, gelu: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> Tensor:
    """Gradient of x; the kept gelu is not needed here."""
    return gradients(lambda x: _geglu(x, dim, approximate, activate_left)[0], [wide(x)], wide(grad))[0].to(x.dtype)


@kernel("npu_gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit, exact or in the tanh form."""
    return F.gelu(wide(x), approximate=approximate).to(x.dtype)


@kernel("npu_gelu_backward")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    """Gradient of `npu_gelu`."""
    return torch.ops.aten.gelu_backward(wide(grad), wide(x), approximate=approximate).to(x.dtype)


@kernel("npu_gelu_mul")
def gelu_mul(x: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu(first half) * second half of the last dimension."""
    first, second = wide(x).chunk(2, -1)
    return (F.gelu(first, approximate=approximate) * second).to(x.dtype)


@kernel("npu_fast_gelu", "fast_gelu")
def fast_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x): near to gelu, not equal to it."""
    return (wide(x) * torch.sigmoid(wide(x) * 1.702)).to(x.dtype)


@kernel("npu_fast_gelu_backward")
def fast_gelu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of `npu_fast_gelu`."""
    sigmoid = torch.sigmoid(wide(x) * 1.702)
    return (wide(grad) * sigmoid * (1 + 1.702 * wide(x) * (1 - sigmoid))).to(x.dtype)


@kernel("npu_silu_", functional="npu_silu")
def silu_(x: Tensor) -> Tensor:
    """x * sigmoid(x), in place."""
    return x.copy_(F.silu(wide(x)))


@kernel("npu_silu_backward")
def silu_backward(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradient of `npu_silu`."""
    return torch.ops.aten.silu_backward(wide(grad), wide(x)).to(grad.dtype)


@kernel("npu_mish")
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return F.mish(wide(x)).to(x.dtype)


@kernel("npu_mish_backward")
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of `npu_mish`."""
    return gradients(F.mish, [wide(x)], wide(grad))[0].to(grad.dtype)


def _clipped_glu(gate: Tensor, value: Tensor, alpha: float, limit: float, bias: float) -> Tensor:
    """The gate is clipped above only, the value on both sides."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(alpha * gate) * (value.clamp(-limit, limit) + bias)


@kernel("npu_clipped_swiglu")
def clipped_swiglu(
    x: Tensor, *, group_index: Tensor | None = None, dim: int = -1, alpha: float = 1.702, limit: float = 7.0,
    bias: float = 1.0, interleaved: bool = True,
) -> Tensor:  # fmt: skip
    """The clipped gated unit of gpt-oss; rows after the groups' sum are zeros."""
    dim = dim % x.dim()
    flat = wide(x).flatten(dim)
    gate, value = (flat[..., ::2], flat[..., 1::2]) if interleaved else flat.chunk(2, -1)
    y = _clipped_glu(gate, value, alpha, limit, bias).reshape(-1, flat.shape[-1] // 2)
    if group_index is not None:
        y = torch.where(torch.arange(y.shape[0], device=y.device).unsqueeze(1) < group_index.sum(), y, 0.0)
    shape = list(x.shape)
    shape[dim] //= 2
    return y.reshape(shape).to(x.dtype)


def _by_group(values: Tensor, group: Tensor | None) -> Tensor:
    """A group's row of values for each row; without groups the only row, or one value for every column."""
    values = values.float()
    if group is None:
        return values if values.dim() < 2 else values[0]
    values = values.reshape(values.shape[0], -1)
    return values[group.clamp(max=values.shape[0] - 1)]


@kernel("npu_swiglu_quant")
def swiglu_quant(
    x: Tensor, *, smooth_scales: Tensor | None = None, offsets: Tensor | None = None,
    group_index: Tensor | None = None, activate_left: bool = False, quant_mode: int = 0, group_list_type: int = 0,
    dst_type: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gated unit, times the smoothing scale of its group, then rounded: static (0), or dynamic by row (1).

    The dynamic scale is what the values were multiplied by, 127 / max, not its inverse.
    """
    first, second = wide(x).chunk(2, -1)
    y = F.silu(first) * second if activate_left else first * F.silu(second)
    rows = y.reshape(-1, y.shape[-1])
    group = None if group_index is None else group_of_rows(group_index, rows.shape[0], group_list_type == 1)
    rows = rows if smooth_scales is None else rows * _by_group(smooth_scales, group)
    dtype = dtype_of(dst_type)
    if quant_mode == 1:
        scale = 127.0 / rows.abs().amax(-1)
        return quantized(rows * scale.unsqueeze(1), dtype).reshape(y.shape), scale.reshape(y.shape[:-1])
    rows = rows if offsets is None else rows + _by_group(offsets, group)
    return quantized(rows, dtype).reshape(y.shape), rows.new_zeros(y.shape[:-1], dtype=torch.float32)


@kernel("npu_dequant_swiglu_quant")
def dequant_swiglu_quant(
    x: Tensor, *, weight_scale: Tensor | None = None, activation_scale: Tensor | None = None,
    bias: Tensor | None = None, quant_scale: Tensor | None = None, quant_offset: Tensor | None = None,
    group_index: Tensor | None = None, activate_left: bool = False, quant_mode: int = 0, dst_type: int | None = None,
    round_mode: int | None = None, activate_dim: int | None = None, swiglu_mode: int = 0, clamp_limit: float = 7.0,
    glu_alpha: float = 1.702, glu_bias: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """int32 matmul results times weight and row scales, gated (mode 1 interleaved and clipped), and rounded again.

    Static (0) divides by the quant scale and adds the offset; dynamic (1) multiplies by it and scales each row.
    An int32 bias is added before the scales, any other after them. Groups are given by their sizes.
    """
    rows = x.reshape(-1, x.shape[-1])
    group = None if group_index is None else group_of_rows(group_index, rows.shape[0], True)
    y = rows.float()
    if x.dtype == torch.int32:
        y = y if bias is None or bias.dtype != torch.int32 else y + _by_group(bias, group)
        y = y if weight_scale is None else y * _by_group(weight_scale, group)
        y = y if activation_scale is None else y * activation_scale.reshape(-1, 1).float()
        y = y if bias is None or bias.dtype == torch.int32 else y + _by_group(bias, group)
    if swiglu_mode == 1:
        y = _clipped_glu(y[..., ::2], y[..., 1::2], glu_alpha, clamp_limit, glu_bias)
    else:
        first, second = y.chunk(2, -1)
        y = F.silu(first) * second if activate_left else first * F.silu(second)
    shape = [*x.shape[:-1], x.shape[-1] // 2]
    if quant_mode == 1:
        values, scale = row_quantized(y if quant_scale is None else y * _by_group(quant_scale, group), dst_type)
        return values.reshape(shape), scale.reshape(shape[:-1])
    y = y if quant_scale is None else y / _by_group(quant_scale, group)
    y = y if quant_offset is None else y + _by_group(quant_offset, group)
    return quantized(y, dtype_of(dst_type)).reshape(shape), y.new_zeros(shape[:-1])


@kernel("npu_gelu_quant")
def gelu_quant(
    x: Tensor, *, input_scale: Tensor | None = None, input_offset: Tensor | None = None, approximate: str = "none",
    quant_mode: str = "dynamic", dst_type: int | None = None, round_mode: str = "rint",
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """gelu(x) * scale, rounded: by row, or with the offset (static, and then there is no output scale)."""
    y = F.gelu(wide(x), approximate=approximate)
    scale = wide_or_none(input_scale)
    if quant_mode == "static" and scale is not None:
        return quantized_by(y, scale, input_offset, False, dst_type), None
    return row_quantized(y if scale is None else y * scale, dst_type)
