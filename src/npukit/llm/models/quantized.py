"""Frozen weights in 4 or 8 bits for adapters above them (QLoRA), in plain PyTorch, the same on NPU, GPU and CPU.

nf4 stores blocks of 64 weights as indices into 16 fixed values, times the largest weight of the block; hqq stores them
as 16 equal steps from an optimised zero point; int8 stores rows as integers times a scale. A product converts the
weight back to the dtype of its input, and again in the backward pass.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BLOCK = 64
# The quantiles of a normal distribution from QLoRA's paper.
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)  # fmt: skip
Kind = Literal["nf4", "int8", "hqq"]


def quantize(model: Any, kind: Kind, device: torch.device) -> None:
    """Replace every linear layer except the output layer, one at a time. Quantisation runs on the device.

    >>> quantize(model, "nf4", torch.device("npu"))
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear and layer is not head:
                setattr(parent, name, QuantizedLinear(layer.to(device), kind))


class QuantizedLinear(nn.Linear):
    """A linear layer with a frozen, quantised weight."""

    def __init__(self, layer: nn.Linear, kind: Kind) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.kind = kind
        packed, scale = pack(layer.weight.detach(), kind)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = layer.bias
        self.register_buffer("scale", scale, persistent=False)
        self.scale: Tensor

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """The dequantised weight."""
        return unpack(self.weight, self.scale, (self.out_features, self.in_features), self.kind).to(dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        product: Tensor
        if torch.compiler.is_compiling():  # it would merge both dequantisations, and keep the weight in between
            product = F.linear(hidden.to(dtype), checkpoint(self.unpacked, dtype, use_reentrant=False))
        else:
            product = _Product.apply(hidden.to(dtype), self)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias.to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(hidden, layer.unpacked(hidden.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.layer.unpacked(gradient.dtype), None


def largest_of(dtype: torch.dtype) -> float:
    """The largest number of an 8-bit type that values are scaled to. For integers it is symmetric.

    >>> largest_of(torch.int8), largest_of(torch.float8_e4m3fn)
    (127.0, 448.0)
    """
    return torch.finfo(dtype).max if dtype.is_floating_point else 127.0


def to_8_bits(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of a matrix as 8-bit integers or floats, and their scales [rows, 1].

    >>> to_8_bits(torch.tensor([[-127.0, 63.5]]), torch.int8)[0]
    tensor([[-127,   64]], dtype=torch.int8)
    """
    scale = matrix.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / largest_of(dtype)
    numbers = matrix.float() / scale
    return (numbers if dtype.is_floating_point else numbers.round()).to(dtype), scale


def pack(weight: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Quantise a weight; returns the small numbers and their scales.

    >>> pack(torch.tensor([[-127.0, 63.5]]), "int8")[0]
    tensor([[-127,   64]], dtype=torch.int8)
    """
    if kind == "int8":
        return to_8_bits(weight, torch.int8)
    weight = weight.float()
    blocks = F.pad(weight.flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    if kind == "hqq":
        numbers, scale = _steps(blocks)
        return numbers[::2] << 4 | numbers[1::2], scale
    scale = blocks.abs().amax(1, keepdim=True)
    values = torch.tensor(NF4, device=weight.device)
    borders = (values[1:] + values[:-1]) / 2
    numbers = torch.bucketize((blocks / scale.clamp(min=1e-12)).contiguous(), borders).to(torch.uint8).flatten()
    return numbers[::2] << 4 | numbers[1::2], scale


def unpack(packed: Tensor, scale: Tensor, shape: tuple[int, int], kind: Kind) -> Tensor:
    """Dequantise what `pack` returned."""
    if kind == "int8":
        return packed.float() * scale
    numbers = torch.stack([packed >> 4, packed & 15], dim=1).view(-1, BLOCK)
    if kind == "hqq":
        blocks = (numbers - scale[:, 1:]) * scale[:, :1]
    else:
        blocks = torch.tensor(NF4, device=packed.device)[numbers.long()] * scale
    return blocks.flatten()[: shape[0] * shape[1]].view(shape)


def _steps(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers from 0 to 15, and the step size and the number for zero of each block.

    Half-quadratic quantisation: the zero point is adjusted in up to twenty iterations, as long as the mean error
    decreases, so that a few large weights cost the others little. The constants are those of the hqq package.
    """
    low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
    per_unit = torch.where(high - low <= 1e-4, 1.0, 15 / (high - low)).clamp(max=2e4)
    zero, best = (-low * per_unit).round(), torch.inf
    for _ in range(20):
        numbers = (blocks * per_unit + zero).round().clamp(0, 15)
        error = blocks - (numbers - zero) / per_unit
        outliers = error.sign() * F.relu(error.abs() - error.abs().pow(-0.3) / 10)
        zero = (numbers - (blocks - outliers) * per_unit).mean(1, keepdim=True)
        if (mean := float(error.abs().mean())) >= best:
            break
        best = mean
    numbers = (blocks * per_unit + zero).round().clamp(0, 15)
    return numbers.to(torch.uint8).flatten(), torch.cat([1 / per_unit, zero], dim=1)
