"""Convolutions under torch_npu's own names, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.simulate.ops.common import wide, wide_or_none
from npukit.simulate.ops.registry import kernel

Sizes = list[int]


def _spread(values: Sizes, dims: int) -> Sizes:
    return list(values) * dims if len(values) == 1 else list(values)


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
    transposed: bool = False, output_padding: Sizes | None = None,
) -> Tensor:  # fmt: skip
    dims = weight.dim() - 2
    stride, padding, dilation = (_spread(v, dims) for v in (stride, padding, dilation))
    y = torch.ops.aten.convolution(
        wide(x), wide(weight), wide_or_none(bias), stride, padding, dilation, transposed,
        _spread(output_padding or [0], dims), groups,
    )  # fmt: skip
    return y.to(x.dtype)


def _backward(
    x: Tensor, grad: Tensor, weight: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
    mask: list[bool], transposed: bool = False, output_padding: Sizes | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    dims = weight.dim() - 2
    stride, padding, dilation = (_spread(v, dims) for v in (stride, padding, dilation))
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    grads = torch.ops.aten.convolution_backward(
        wide(grad), wide(x), wide(weight), [channels], stride, padding, dilation, transposed,
        _spread(output_padding or [0], dims), groups, [True, True, True],
    )  # fmt: skip
    return tuple(g.to(weight.dtype) if wanted else None for g, wanted in zip(grads, mask, strict=True))


@kernel("npu_conv2d", "npu_conv3d", "npu_convolution", out=["npu_conv2d.out", "npu_conv3d.out"])
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """A convolution of one, two or three dimensions."""
    return _forward(x, weight, bias, stride, padding, dilation, groups)


@kernel("npu_conv2d_backward", "npu_conv3d_backward", "npu_convolution_backward")
def convolution_backward(
    x: Tensor, grad: Tensor, weight: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x, weight and bias; None for those that the mask leaves out."""
    return _backward(x, grad, weight, stride, padding, dilation, groups, output_mask)


@kernel("npu_conv_transpose2d", "npu_convolution_transpose")
def convolution_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sizes, output_padding: Sizes, stride: Sizes,
    dilation: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    """A transposed convolution; padding comes before stride here."""
    return _forward(x, weight, bias, stride, padding, dilation, groups, True, output_padding)


@kernel("npu_conv_transpose2d_backward", "npu_conv_transpose3d_backward", "npu_convolution_transpose_backward")
def convolution_transpose_backward(
    x: Tensor, grad: Tensor, weight: Tensor, padding: Sizes, output_padding: Sizes, stride: Sizes, dilation: Sizes,
    groups: int, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x, weight and bias of a transposed convolution."""
    return _backward(x, grad, weight, stride, padding, dilation, groups, output_mask, True, output_padding)


@kernel("aten::_conv_depthwise2d", out=["aten::_conv_depthwise2d.out"])
def depthwise(
    x: Tensor, weight: Tensor, kernel_size: Sizes, bias: Tensor | None, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Tensor:
    """A convolution of each channel by itself."""
    return _forward(x, weight, bias, stride, padding, dilation, x.shape[1])


@kernel("_conv_depthwise2d_backward")
def depthwise_backward(
    grad: Tensor, x: Tensor, weight: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
    output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x and weight."""
    return _backward(x, grad, weight, stride, padding, dilation, x.shape[1], [*output_mask, False])[:2]


@kernel("slow_conv_dilated2d_backward")
def dilated_backward(
    grad: Tensor, x: Tensor, weight: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
    output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x, weight and bias."""
    return _backward(x, grad, weight, stride, padding, dilation, 1, output_mask)


@kernel("slow_conv_transpose2d_backward")
def slow_transpose_backward(
    grad: Tensor, x: Tensor, weight: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    output_padding: Sizes, dilation: Sizes, output_mask: list[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of x, weight and bias of a transposed convolution."""
    return _backward(x, grad, weight, stride, padding, dilation, 1, output_mask, True, output_padding)
