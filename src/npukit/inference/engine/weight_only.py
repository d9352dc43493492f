"""Layers of GPTQ, AWQ and compressed-tensors checkpoints that stay in 4 or 8 bits on an NPU.

torch_npu multiplies 16-bit activations with such weights directly (W4A16, W8A16), so they take a quarter or half of the
memory. On other devices they are computed in 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from npukit.llm.models.checkpoint import WeightFiles
from npukit.llm.models.dequantize import GroupedWeight


def keep_quantized(model: Any, weights: WeightFiles, device: torch.device) -> None:
    """Replace the linear layers that a checkpoint has in groups of integers, one after the other, on an NPU.

    >>> keep_quantized(model, open_checkpoint(Path("qwen2-7b-awq")), torch.device("npu"))
    """
    modules, head = dict(model.named_modules()), model.get_output_embeddings()
    for name, layer in weights.quantized.items():
        path = name.removesuffix(".weight")
        linear = modules.get(path)
        if type(linear) is not nn.Linear or linear is head:
            continue
        weight = layer.format.weight(layer)
        if isinstance(weight, GroupedWeight) and _is_supported(weight):
            parent, _, own = path.rpartition(".")
            setattr(modules[parent], own, WeightOnlyLinear(weight, linear, device))


def _is_supported(weight: GroupedWeight) -> bool:
    """torch_npu takes groups of the same size, in multiples of 32 inputs."""
    sizes = weight.group.bincount()
    are_even = len(sizes) == 1 or bool((sizes == sizes[0]).all() and sizes[0] % 32 == 0)
    return weight.bits in (4, 8) and are_even


class WeightOnlyLinear(nn.Linear):
    """A linear layer whose weight is integers in groups, each with a scale and an offset by output."""

    def __init__(self, weight: GroupedWeight, linear: nn.Linear, device: torch.device) -> None:
        import torch_npu

        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        groups = weight.scale.shape[1]
        self.group_size = 0 if groups == 1 else self.in_features // groups
        order = weight.group.argsort(stable=True)
        in_order = bool((weight.group[1:] >= weight.group[:-1]).all())
        self.register_buffer("order", None if in_order else order.to(device), persistent=False)
        self.order: Tensor | None
        middle = 1 << weight.bits - 1  # torch_npu's integers have a sign
        numbers = (weight.numbers[:, order].T - middle).to(device)
        small = torch_npu.npu_convert_weight_to_int4pack(numbers) if weight.bits == 4 else numbers.to(torch.int8)
        self.weight = nn.Parameter(small, requires_grad=False)
        dtype = linear.weight.dtype
        self.register_buffer("scale", weight.scale.T.to(device, dtype).contiguous(), persistent=False)
        self.register_buffer("offset", (middle - weight.zero.T).to(device, dtype).contiguous(), persistent=False)
        self.scale: Tensor
        self.offset: Tensor
        self.register_parameter("bias", linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        import torch_npu

        rows = hidden.reshape(-1, self.in_features)
        rows = rows if self.order is None else rows[:, self.order]
        product: Tensor = torch_npu.npu_weight_quant_batchmatmul(
            rows, self.weight, self.scale, self.offset, antiquant_group_size=self.group_size
        )
        product = product.view(*hidden.shape[:-1], self.out_features)
        return product if self.bias is None else product + self.bias
