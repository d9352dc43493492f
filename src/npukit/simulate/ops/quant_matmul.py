"""Matrix products of quantized values, and the encoding of their scales."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import dtype_of, pack_int4, quantized, unpack_int4, wide
from npukit.simulate.ops.registry import kernel

_SCALE_BITS = 0xFFFFE000  # the hardware keeps 19 bits of an fp32 scale
_FLAG = 1 << 46


@kernel("npu_trans_quant_param")
def trans_quant_param(scale: Tensor, offset: Tensor | None = None, round_mode: int | None = 0) -> Tensor:
    """An fp32 scale as the int64 that the matrix unit reads: 19 bits of it, a 9-bit offset above, and a flag."""
    code = scale.float().view(torch.int32).to(torch.int64) & _SCALE_BITS
    if offset is not None:
        code = code | ((offset.float().round().clamp(-256, 255).to(torch.int64) & 0x1FF) << 37)
    return code | _FLAG


def scale_of(code: Tensor) -> Tensor:
    """The scale as fp32, decoded where it comes as an integer."""
    return code.float() if code.is_floating_point() else code.to(torch.int32).view(torch.float32)


def _offset_of(code: Tensor) -> Tensor | None:
    """The offset in an encoded scale."""
    if code.is_floating_point():
        return None
    offset = (code >> 37) & 0x1FF
    return torch.where(offset > 255, offset - 512, offset).float()


def integers(matrix: Tensor) -> Tensor:
    """A matrix as fp32 values; an int32 one holds eight 4-bit integers each, along the dimension that is contiguous."""
    if matrix.dtype != torch.int32:
        return matrix.float()
    if matrix.stride(-1) != 1 and matrix.stride(-2) == 1:
        return unpack_int4(matrix.mT).mT.float()
    return unpack_int4(matrix).float()


def one_width(a: Tensor, b: Tensor) -> None:
    """Refuse int8 times 4-bit integers, whose scales and layouts are their own."""
    if a.dtype == torch.int8 and b.dtype == torch.int32:
        raise NotImplementedError("The simulated NPU multiplies int8 by int8 and int4 by int4, not int8 by int4.")


def _cast(y: Tensor, dtype: torch.dtype) -> Tensor:
    return quantized(y, dtype) if dtype in (torch.int8, torch.int32) else y.to(dtype)


@kernel("npu_quant_matmul")
def quant_matmul(
    x1: Tensor, x2: Tensor, scale: Tensor, *, offset: Tensor | None = None, pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None, output_dtype: int | None = None, x1_dtype: int | None = None,
    x2_dtype: int | None = None, pertoken_scale_dtype: int | None = None, scale_dtype: int | None = None,
    group_sizes: list[int] | None = None, y_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(x1 @ x2 + int32 bias) * scale * row scale + other bias; int8 unless an output dtype is given.

    An int32 output is the plain product: no scale is applied. Sums are exact, being taken in fp64.
    """
    one_width(x1, x2)
    if group_sizes and scale.dim() > 1 and scale.shape[0] > 1:
        raise NotImplementedError("The simulated npu_quant_matmul takes a scale for each column, not for blocks.")
    dtype = dtype_of(output_dtype)
    product = integers(x1).double() @ integers(x2).double()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    if dtype == torch.int32:
        return product.to(torch.int32)
    y = product.float() * scale_of(scale)
    y = y if pertoken_scale is None else y * pertoken_scale.float().reshape(-1, 1)
    y = y if bias is None or bias.dtype == torch.int32 else y + bias.float()
    shift = _offset_of(scale) if offset is None else offset.float()
    if dtype == torch.int8 and shift is not None:
        y = y + shift
    return _cast(y, dtype)


@kernel("npu_weight_quant_batchmatmul")
def weight_quant_batchmatmul(
    x: Tensor, weight: Tensor, antiquant_scale: Tensor, antiquant_offset: Tensor | None = None,
    quant_scale: Tensor | None = None, quant_offset: Tensor | None = None, bias: Tensor | None = None,
    antiquant_group_size: int = 0, inner_precise: int = 0, weight_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """x @ ((weight + offset) * scale) + bias, the weight being int8 or packed 4-bit; int8 again with a quant scale."""
    y = wide(x) @ wide(dequantized(weight, antiquant_scale, antiquant_offset, x.dtype, antiquant_group_size))
    y = y if bias is None else y + wide(bias)
    if quant_scale is None:
        return y.to(x.dtype)
    y = y * scale_of(quant_scale)
    shift = _offset_of(quant_scale) if quant_offset is None else quant_offset.float()
    return quantized(y if shift is None else y + shift, torch.int8)


def dequantized(
    weight: Tensor, scale: Tensor, offset: Tensor | None, dtype: torch.dtype, group_size: int = 0
) -> Tensor:
    """(weight + offset) * scale, rounded after each step to the dtype in which the matrix unit reads it.

    With a group size there is a row of scales for that many rows of weight.
    """
    values = integers(weight).to(dtype)

    def along_rows(t: Tensor) -> Tensor:
        return t.to(dtype).repeat_interleave(group_size, -2)[..., : values.shape[-2], :] if group_size else t.to(dtype)

    return (values if offset is None else values + along_rows(offset)) * along_rows(scale)


@kernel("npu_convert_weight_to_int4pack")
def convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int = 0) -> Tensor:
    """Eight int32 values of the last dimension in one int32, four bits each."""
    return pack_int4(weight)


@kernel("npu_dequant_bias")
def dequant_bias(
    x: Tensor, weight_scale: Tensor, activation_scale: Tensor | None, bias: Tensor | None,
    *, output_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """(int32 x + int32 bias) * weight scale * row scale + other bias, in fp16 unless told otherwise."""
    integer_bias = bias is not None and bias.dtype == torch.int32
    y = x + bias if bias is not None and integer_bias else x
    y = y.float() * weight_scale.float()
    y = y if activation_scale is None else y * activation_scale.float().unsqueeze(-1)
    y = y if bias is None or integer_bias else y + bias.float()
    return y.to(dtype_of(output_dtype, torch.float16))


@kernel("npu_quant_conv2d")
def quant_conv2d(
    x: Tensor, weight: Tensor, scale: Tensor, strides: list[int], pads: list[int], dilations: list[int],
    groups: int = 1, offset_x: int = 0, round_mode: str = "rint", output_dtype: int | None = None,
    bias: Tensor | None = None, offset: Tensor | None = None, input_dtype: int | None = None,
    weight_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """(conv2d of integers + bias) * scale by channel."""
    shift = None if bias is None else bias.double()
    y = F.conv2d(x.double(), weight.double(), shift, strides, pads, dilations, groups).float()
    return _cast(y * scale_of(scale).reshape(1, -1, 1, 1), dtype_of(output_dtype, torch.float16))


@kernel("npu_transpose_batchmatmul")
def transpose_batchmatmul(
    x: Tensor, weight: Tensor, *, bias: Tensor | None = None, scale: Tensor | None = None,
    perm_x1: list[int] | None = None, perm_x2: list[int] | None = None, perm_y: list[int] | None = None,
    batch_split_factor: int | None = 1,
) -> Tensor:  # fmt: skip
    """Batched product with its transposes: [M, B, N]; with a scale int8 [M, 1, B * N], split by batch if asked."""
    y = wide(x).permute(perm_x1 or [0, 1, 2]) @ wide(weight).permute(perm_x2 or [0, 1, 2])
    y = y.permute(perm_y or [1, 0, 2])
    if scale is not None:
        return quantized(y.reshape(y.shape[0], 1, -1) * scale_of(scale), torch.int8)
    if batch_split_factor is not None and batch_split_factor > 1:
        y = y.reshape(y.shape[0], batch_split_factor, -1).transpose(0, 1)
    return y.to(x.dtype).contiguous()


@kernel("npu_fused_matmul")
def fused_matmul(
    x1: Tensor, x2: Tensor, *, bias: Tensor | None = None, x3: Tensor | None = None, fused_op_type: str = ""
) -> Tensor:
    """x1 @ x2 + bias, then add or multiply x3, relu, or gelu (erf or tanh)."""
    y = wide(x1) @ wide(x2)
    y = y if bias is None else y + wide(bias)
    if x3 is not None:
        y = y + wide(x3) if fused_op_type == "add" else y * wide(x3)
    elif fused_op_type.startswith("gelu"):
        y = F.gelu(y, approximate="tanh" if fused_op_type == "gelu_tanh" else "none")
    elif fused_op_type == "relu":
        y = F.relu(y)
    return y.to(x1.dtype)
