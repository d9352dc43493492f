"""Matrix products: linear layers, batched products that reduce, transposes fused with reshapes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npukit.simulate.ops.common import gradients, wide, wide_or_none
from npukit.simulate.ops.registry import kernel


@kernel("npu_linear")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, for two dimensions."""
    return torch.nn.functional.linear(wide(x), wide(weight), wide_or_none(bias)).to(x.dtype)


@kernel("npu_linear_backward", product=True)
def linear_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight; the bias gets its own from autograd."""
    return grad @ weight, grad.T @ x


@kernel("npu_bmmV2", product=True)
def bmm_v2(a: Tensor, b: Tensor, output_sizes: list[int]) -> Tensor:
    """a @ b; with output_sizes the batch dimensions that differ from it are summed away."""
    if not output_sizes:
        return torch.matmul(a, b)
    product = torch.matmul(a if a.dim() > 1 else a.unsqueeze(0), b if b.dim() > 1 else b.unsqueeze(1))
    if product.numel() == math.prod(output_sizes):
        return product.reshape(output_sizes)
    return product.sum_to_size(output_sizes)


@kernel("npu_bmm_v2_mat1_backward", product=True)
def bmm_v2_mat1_backward(grad: Tensor, a: Tensor, b: Tensor, sizes: list[int]) -> Tensor:
    """Gradient of the first factor."""
    return matmul_backward(grad, a, b, [True, False])[0].reshape(sizes)


@kernel("npu_bmm_v2_mat2_backward", product=True)
def bmm_v2_mat2_backward(grad: Tensor, a: Tensor, b: Tensor, sizes: list[int]) -> Tensor:
    """Gradient of the second factor."""
    return matmul_backward(grad, a, b, [False, True])[1].reshape(sizes)


@kernel("aten::matmul_backward", product=True)
def matmul_backward(grad: Tensor, a: Tensor, b: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor]:
    """Gradients of both factors of a matmul with its broadcasting; one that is not asked for is empty."""
    if a.dim() > 1 and b.dim() == 2:  # a linear layer: one product of two matrices each
        rows = grad.flatten(0, -2)
        da = (rows @ b.mH).reshape(a.shape) if mask[0] else a.new_empty(0)
        db = a.flatten(0, -2).mH @ rows if mask[1] else b.new_empty(0)
        return da, db
    left, right = a if a.dim() > 1 else a.unsqueeze(0), b if b.dim() > 1 else b.unsqueeze(1)
    if b.dim() == 1:
        grad = grad.unsqueeze(-1)
    if a.dim() == 1:
        grad = grad.unsqueeze(-2)
    da = (grad @ right.mH).sum_to_size(left.shape).reshape(a.shape) if mask[0] else a.new_empty(0)
    db = (left.mH @ grad).sum_to_size(right.shape).reshape(b.shape) if mask[1] else b.new_empty(0)
    return da, db


@kernel("matmul_double_backward", product=True)
def matmul_double_backward(
    grad_a: Tensor | None, grad_b: Tensor | None, grad: Tensor, a: Tensor, b: Tensor, mask: list[bool]
) -> tuple[Tensor, ...]:
    """Gradients of (grad, a, b) when matmul_backward's own outputs have gradients."""
    given = [grad_a is not None, grad_b is not None]
    upstream = [g for g in (grad_a, grad_b) if g is not None]
    if not upstream:
        return tuple(torch.zeros_like(x) for x in (grad, a, b))

    def first_order(grad: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [g for g, wanted in zip(matmul_backward(grad, a, b, given), given, strict=True) if wanted]

    return gradients(first_order, [grad, a, b], upstream)


@kernel("npu_confusion_transpose")
def confusion_transpose(x: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """permute then reshape, or reshape then permute."""
    if transpose_first:
        return x.permute(perm).reshape(shape)
    return x.reshape(shape).permute(perm).contiguous()


@kernel("npu_confusion_transpose_backward")
def confusion_transpose_backward(grad: Tensor, perm: list[int], shape: list[int], transpose_first: bool) -> Tensor:
    """The way back to `shape`, the input's; transpose_first comes already negated."""
    inverse = sorted(range(len(perm)), key=perm.__getitem__)
    if transpose_first:
        return grad.permute(inverse).reshape(shape)
    return grad.reshape([shape[p] for p in perm]).permute(inverse).contiguous()
