"""Dropout whose mask is kept as bits (or bytes) for the backward pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npukit.simulate.ops.common import wide
from npukit.simulate.ops.dropout_mask import keep_mask, pack, unpack
from npukit.simulate.ops.registry import generator, kernel


def _keep(count: int, p: float, device: torch.device) -> Tensor:
    """A mask drawn from the NPU's generator; without values on the meta device, where a graph notes the draw."""
    drawn = generator()
    if device.type == "meta":
        return torch.empty(count, dtype=torch.bool, device=device)
    return torch.rand(count, generator=drawn) >= p


def _masked(x: Tensor, keep: Tensor, p: float) -> Tensor:
    if p >= 1:
        return torch.zeros_like(x)
    return (wide(x) * keep.reshape(x.shape) / (1 - p)).to(x.dtype)


@kernel("_npu_dropout")
def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(x * mask / (1 - p), mask): a bit for each element, in bytes, padded to 128 bits."""
    keep = _keep(x.numel(), p, x.device)
    return _masked(x, keep, p), pack(keep)


@kernel("npu_dropout_backward")
def dropout_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """grad * mask / (1 - p); p is the probability to drop, here as in the forward op."""
    return _masked(grad, unpack(mask, grad.numel()), p)


@kernel("npu_dropout_do_mask")
def dropout_do_mask(x: Tensor, mask: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """x * mask / (1 - p) with a mask made before, and a copy of that mask."""
    return dropout_backward(x, mask, p), mask.clone()


@kernel("_npu_dropout_gen_mask.Tensor")
def dropout_gen_mask_from_seed(
    x: Tensor, size: list[int], p: float, seed: int, offset: int,
    *, parallel: bool | None = True, sync: bool | None = None,
) -> Tensor:  # fmt: skip
    """A mask of bits that seed and offset determine: the same call gives the same mask."""
    count = math.prod(size)
    if x.is_meta:
        return pack(torch.empty(count, dtype=torch.bool, device=x.device))
    return pack(keep_mask(count, 1 - p, seed, offset))


@kernel("_dropout_with_byte_mask")
def dropout_with_byte_mask(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(x * mask / (1 - p), mask): a byte for each element, in x's shape."""
    keep = _keep(x.numel(), p, x.device)
    return _masked(x, keep, p), keep.to(torch.uint8).reshape(x.shape)


@kernel("_dropout_with_byte_mask_backward")
def dropout_with_byte_mask_backward(grad: Tensor, mask: Tensor, p: float) -> Tensor:
    """grad * mask / (1 - p)."""
    return _masked(grad, mask != 0, p)


@kernel("npu_dropout_with_add_softmax")
def dropout_with_add_softmax(
    x: Tensor, x1: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(mask, softmax, dropout of it) of x1 + alpha * x; the mask has a byte for each element, padded to 128."""
    softmax = (wide(x1) + alpha * wide(x)).softmax(dim)
    keep = _keep(softmax.numel(), prob, x.device)
    mask = torch.nn.functional.pad(keep.to(torch.uint8), (0, -keep.numel() % 128))
    return mask, softmax.to(x1.dtype), _masked(softmax, keep, prob).to(x.dtype)


@kernel("npu_dropout_with_add_softmax_backward")
def dropout_with_add_softmax_backward(
    grad: Tensor, mask: Tensor, softmax: Tensor, alpha: float, prob: float, dim: int
) -> tuple[Tensor, Tensor]:
    """(gradient of x, grad): torch_npu hands the incoming gradient on as that of x1, which is not x1's gradient."""
    probability = wide(softmax)
    upstream = _masked(wide(grad), mask[: grad.numel()] != 0, prob)
    dx = alpha * probability * (upstream - (upstream * probability).sum(dim, keepdim=True))
    return dx.to(softmax.dtype), grad.clone()
