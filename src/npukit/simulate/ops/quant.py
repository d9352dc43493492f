"""Rounding to fewer bits and back: by tensor, channel, row, group or block."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import (
    INT4,
    dtype_of,
    group_of_rows,
    largest,
    pack_int4,
    quantized,
    quantized_by,
    unpack_int4,
    wide,
)
from npukit.simulate.ops.misc import scatter_update_
from npukit.simulate.ops.registry import kernel


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """One value for all, or one for each place of an axis, in a shape that broadcasts to x."""
    if values.dim() > 1 or values.numel() == 1:
        return values
    return values.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])


@kernel("npu_quantize")
def quantize(
    x: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: int, axis: int = 1, div_mode: bool = True
) -> Tensor:
    """round(x / scale + zero point), or x * scale with div_mode False; 4-bit results are packed by eight in int32."""
    zero = None if zero_points is None else _along(zero_points, x, axis)
    return quantized_by(wide(x), _along(scales, x, axis), zero, div_mode, dtype)


@kernel("_quantize_per_channel_impl.out")
def quantize_per_channel(
    x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, dtype: int, *, result: Tensor
) -> Tensor:
    """round(x / scale + zero point) by channel, into the integers of a quantized tensor."""
    return result.copy_(quantize(x, scales, zero_points, dtype, axis))


@kernel("_quantize_per_tensor_impl.out")
def quantize_per_tensor(x: Tensor, scales: Tensor, zero_points: Tensor, dtype: int, *, result: Tensor) -> Tensor:
    """round(x / scale + zero point), into the integers of a quantized tensor."""
    return result.copy_(quantize(x, scales, zero_points, dtype))


def _smoothed(x: Tensor, smooth: Tensor | None, group_index: Tensor | None) -> Tensor:
    """x * the smoothing scales, those of each row's group where groups are given by their ends."""
    y = wide(x)
    if smooth is None or group_index is None:
        return y if smooth is None else y * wide(smooth)
    rows = y.reshape(-1, y.shape[-1])
    group = group_of_rows(group_index, rows.shape[0], False)
    factor = F.pad(wide(smooth), (0, 0, 0, 1), value=1.0)[group.clamp(max=smooth.shape[0])]
    return (rows * factor).reshape(y.shape)


def _reduced_dims(x: Tensor, quant_mode: str) -> tuple[int, ...]:
    return {"pertoken": (-1,), "perchannel": (-2,), "pertensor": tuple(range(x.dim()))}[quant_mode]


def _unreduced(t: Tensor, quant_mode: str) -> Tensor:
    return t.reshape(1) if quant_mode == "pertensor" else t.squeeze(-1 if quant_mode == "pertoken" else -2)


def _stored(y: Tensor, dst_type: int | None) -> Tensor:
    return pack_int4(y.round().clamp(-8, 7)) if dst_type in INT4 else quantized(y, dtype_of(dst_type))


@kernel("npu_dynamic_quant")
def dynamic_quant(
    x: Tensor, *, smooth_scales: Tensor | None = None, group_index: Tensor | None = None, dst_type: int | None = None,
    quant_mode: str = "pertoken", dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(x / scale, scale) with scale = max|x| / the type's largest, over rows, columns or everything."""
    y = _smoothed(x, smooth_scales, group_index)
    top = dst_type_max or (7.0 if dst_type in INT4 else largest(dtype_of(dst_type)))
    scale = y.abs().amax(_reduced_dims(y, quant_mode), keepdim=True) / top
    return _stored(y / torch.where(scale == 0, 1.0, scale), dst_type), _unreduced(scale, quant_mode)


@kernel("npu_dynamic_quant_asymmetric")
def dynamic_quant_asymmetric(
    x: Tensor, *, smooth_scales: Tensor | None = None, group_index: Tensor | None = None, dst_type: int | None = None,
    quant_mode: str = "pertoken", dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(x / scale + offset, scale, offset) so that the smallest and the largest value use the type's whole range."""
    y = _smoothed(x, smooth_scales, group_index)
    top = 7.0 if dst_type in INT4 else largest(dtype_of(dst_type))
    steps = 15.0 if dst_type in INT4 else 255.0 if dtype_of(dst_type) == torch.int8 else 2 * top
    dims = _reduced_dims(y, quant_mode)
    high = y.amax(dims, keepdim=True)
    scale = (high - y.amin(dims, keepdim=True)) / steps
    offset = top - high / scale
    return _stored(y / scale + offset, dst_type), _unreduced(scale, quant_mode), _unreduced(offset, quant_mode)


@kernel("npu_dynamic_block_quant")
def dynamic_block_quant(
    x: Tensor, *, min_scale: float = 0.0, round_mode: str = "rint", dst_type: int = 1, row_block_size: int = 1,
    col_block_size: int = 128, dst_type_max: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(x / scale, scale) with a scale for each block of rows and columns, none below min_scale."""
    rows, columns = x.shape[-2:]
    padded = F.pad(wide(x), (0, -columns % col_block_size, 0, -rows % row_block_size))
    blocks = padded.unflatten(-1, (-1, col_block_size)).unflatten(-3, (-1, row_block_size))
    top = dst_type_max or largest(dtype_of(dst_type))
    scale = (blocks.abs().amax((-3, -1), keepdim=True) / top).clamp(min=min_scale)
    y = (blocks / torch.where(scale == 0, 1.0, scale)).flatten(-4, -3).flatten(-2)
    return quantized(y[..., :rows, :columns], dtype_of(dst_type)), scale.squeeze((-3, -1)).float()


@kernel("npu_group_quant")
def group_quant(
    x: Tensor, scale: Tensor, group_index: Tensor, *, offset: Tensor | None = None, dst_dtype: int | None = None
) -> Tensor:
    """round(x * its group's scale + offset), groups being given by their ends."""
    group = group_of_rows(group_index, x.shape[0], False).clamp(max=scale.shape[0] - 1)
    return quantized_by(wide(x), scale[group], offset, False, dst_dtype)


@kernel("npu_anti_quant")
def anti_quant(
    x: Tensor, scale: Tensor, *, offset: Tensor | None = None, dst_dtype: int | None = None,
    src_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """(x + offset) * scale in fp16 unless told otherwise; an int32 holds eight 4-bit values."""
    values = (unpack_int4(x) if x.dtype == torch.int32 else x).float()
    values = values if offset is None else values + offset.float()
    return (values * scale.float()).to(dtype_of(dst_dtype, torch.float16))


@kernel("npu_quant_scatter_", functional="npu_quant_scatter")
def quant_scatter_(
    x: Tensor, indices: Tensor, updates: Tensor, quant_scales: Tensor, quant_zero_points: Tensor | None = None,
    axis: int = -2, quant_axis: int = -1, reduce: str = "update", dst_type: int | None = None,
    round_mode: str | None = "rint",
) -> Tensor:  # fmt: skip
    """The updates, divided by their scales and rounded, along `axis` from the index on; in place."""
    zero = None if quant_zero_points is None else _along(quant_zero_points.flatten(), updates, quant_axis)
    values = quantized_by(wide(updates), _along(quant_scales.flatten(), updates, quant_axis), zero, True, dst_type)
    return scatter_update_(x, indices, values, axis)
