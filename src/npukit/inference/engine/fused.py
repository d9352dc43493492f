"""Fuses linear layers with the same input: larger matrices are read faster, with fewer kernels.

transformers' layers call query, key and value, or gate and up, one after another. The first call computes all of them
and keeps the results for the other calls. Each stays a linear layer whose weight is a slice of the fused one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from npukit.inference.engine.w8a8 import W8A8Linear

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Common:
    """The fused weight of several layers, and results that have not been fetched yet."""

    def __init__(self, linears: list[Any]) -> None:
        self.sizes = [linear.out_features for linear in linears]
        self.linear = W8A8Linear.joined(linears) if isinstance(linears[0], W8A8Linear) else _concatenate(linears)
        self.source: Tensor | None = None
        self.kept: tuple[Tensor, ...] = ()

    def compute(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """Compute all layers."""
        return torch.split(self.linear(hidden), self.sizes, -1)


class Part(nn.Linear):
    """One of the fused layers, the `index`-th in the order of calls."""

    def __init__(self, common: Common, index: int) -> None:
        nn.Module.__init__(self)
        self.common, self.index = [common], index  # in a list, so that it is not saved or moved twice
        linear = common.linear
        self.in_features, self.out_features = linear.in_features, common.sizes[index]
        self.weight = nn.Parameter(torch.split(linear.weight, common.sizes)[index], requires_grad=False)
        bias = None if linear.bias is None else nn.Parameter(torch.split(linear.bias, common.sizes)[index], False)
        self.register_parameter("bias", bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """This layer's result: computed by the first call with the same input, or now."""
        common = self.common[0]
        if self.index == 0:
            common.source, common.kept = hidden, common.compute(hidden)
        elif common.source is not hidden:
            return common.compute(hidden)[self.index]
        result = common.kept[self.index]
        if self.index == len(common.sizes) - 1:
            common.source, common.kept = None, ()
        return result


def fuse(model: nn.Module) -> None:
    """Fuse all layers that can be, one after another, so that little extra memory is needed."""
    for module in list(model.modules()):
        for names in _TOGETHER:
            linears: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(linear) in (nn.Linear, W8A8Linear) for linear in linears) and _are_alike(linears):
                common = Common(linears)
                for index, name in enumerate(names):
                    setattr(module, name, Part(common, index))


def _concatenate(linears: list[nn.Linear]) -> nn.Linear:
    first = linears[0]
    joined = nn.Linear(first.in_features, sum(linear.out_features for linear in linears), bias=False, device="meta")
    joined.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
    if first.bias is not None:
        joined.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
    return joined


def _are_alike(linears: list[nn.Linear]) -> bool:
    kinds = {(linear.in_features, linear.bias is None, linear.weight.dtype, linear.weight.device) for linear in linears}
    return len(kinds) == 1
