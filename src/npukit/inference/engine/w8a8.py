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
from npukit.launch.abilities import abilities, eight_bits
from npukit.llm.models.quantized import to_8_bits


def quantize(model: Any) -> None:
    """Replace every linear layer but the output layer, one after the other.

    >>> quantize(model)
    """
    device = model.device
    if (dtype := eight_bits(device)) is None:
        raise NpukitError(
            f"{torch.cuda.get_device_name(device)} cannot multiply in 8 bits: leave out --quantization, or use a "
            "GPU of the Ada or Hopper generation or later."
        )
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and layer is not head:
                setattr(parent, name, W8A8Linear.of(layer, dtype))


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
    def of(cls, layer: nn.Linear, dtype: torch.dtype) -> W8A8Linear:
        """The layer in this type of 8 bits."""
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
        if self.weight.dtype.is_floating_point:
            return torch._scaled_mm(
                small, self.weight.T, scale, self.scale[None], out_dtype=torch.bfloat16, use_fast_accum=True
            )
        return (small.float() @ self.weight.T.float()) * scale * self.scale
