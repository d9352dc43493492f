"""Linear layers in 8 bits: half the memory, and products at the rate of 8-bit matrix units.

A weight has one scale for each output, made when the model is loaded; an input has one for each token, made on the
way (dynamic quantization, as vLLM and torch_npu do it). The numbers are int8, and fp8 on CUDA, whose matrix units
multiply those fastest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities

_FP8 = torch.float8_e4m3fn
_FIRST_WITH_FP8 = (8, 9)  # compute capability: Ada; Hopper is 9.0


def quantize(model: Any) -> None:
    """Replace every linear layer but the output layer, one after the other.

    >>> quantize(model)
    """
    device = model.device
    if abilities(device).compiles and torch.cuda.get_device_capability(device) < _FIRST_WITH_FP8:
        raise NpukitError(
            f"{torch.cuda.get_device_name(device)} cannot multiply in 8 bits: leave out --quantization, or take a GPU "
            "of the Ada or Hopper generation or later."
        )
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and layer is not head:
                setattr(parent, name, W8A8Linear.of(layer))


class W8A8Linear(nn.Linear):
    """A linear layer with a weight of 8-bit numbers and a scale for each output."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_buffer("scale", scale, persistent=False)
        self.scale: Tensor
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    @classmethod
    def of(cls, layer: nn.Linear) -> W8A8Linear:
        """The layer in 8 bits."""
        dtype = _FP8 if abilities(layer.weight.device).compiles else torch.int8
        weight, scale = to_8_bits(layer.weight.detach(), dtype)
        return cls(weight, scale[:, 0], layer.bias)

    @classmethod
    def joined(cls, layers: list[W8A8Linear]) -> W8A8Linear:
        """Several layers with the same input as one."""
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weight, scale = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "scale"))
        return cls(weight.detach(), scale, torch.cat(biases).detach() if biases else None)

    def forward(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(-1, self.in_features)
        product = self._product(rows).to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias

    def _product(self, rows: Tensor) -> Tensor:
        if abilities(rows.device).torch_npu:
            import torch_npu

            small, scale = torch_npu.npu_dynamic_quant(rows)
            options = {"pertoken_scale": scale, "output_dtype": rows.dtype}
            product: Tensor = torch_npu.npu_quant_matmul(small, self.weight.T, self.scale, **options)
            return product
        small, scale = to_8_bits(rows, self.weight.dtype)
        if abilities(rows.device).compiles:
            return torch._scaled_mm(
                small, self.weight.T, scale, self.scale[None], out_dtype=torch.bfloat16, use_fast_accum=True
            )
        return (small.float() @ self.weight.T.float()) * scale * self.scale


def to_8_bits(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of a matrix as 8-bit numbers, and what each is multiplied with, [rows, 1].

    >>> to_8_bits(torch.tensor([[-127.0, 63.5]]), torch.int8)[0]
    tensor([[-127,   64]], dtype=torch.int8)
    """
    largest = torch.finfo(dtype).max if dtype.is_floating_point else 127
    scale = matrix.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / largest
    numbers = matrix.float() / scale
    return (numbers if dtype.is_floating_point else numbers.round()).to(dtype), scale
