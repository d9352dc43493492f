"""Matrix products with the same input as one: a device reads larger matrices faster, and starts fewer kernels.

transformers' layers call query, key and value, or gate and up, one after the other. The first of them computes all and
keeps the others' results for their calls. Each stays a linear layer, whose weight is a part of the common one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Common:
    """The matrix of several layers, and what was computed for those that have not asked for it yet."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        self.sizes = [linear.out_features for linear in linears]
        self.weight = torch.cat([linear.weight.detach() for linear in linears])
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.source: Tensor | None = None
        self.kept: tuple[Tensor, ...] = ()


class Part(nn.Linear):
    """One of the layers, the `index`-th in the order of calls."""

    def __init__(self, common: Common, index: int) -> None:
        nn.Module.__init__(self)
        self.common, self.index = [common], index  # in a list: nothing of it is saved or moved twice
        self.in_features, self.out_features = common.weight.shape[1], common.sizes[index]
        self.weight = nn.Parameter(torch.split(common.weight, common.sizes)[index], requires_grad=False)
        bias = None if common.bias is None else nn.Parameter(torch.split(common.bias, common.sizes)[index], False)
        self.register_parameter("bias", bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """What the first one computed from the same input, or, without that, the layer's own product."""
        common = self.common[0]
        if self.index == 0:
            common.source = hidden
            common.kept = torch.split(F.linear(hidden, common.weight, common.bias), common.sizes, -1)
        elif common.source is not hidden:
            return F.linear(hidden, self.weight, self.bias)
        result = common.kept[self.index]
        if self.index == len(common.sizes) - 1:
            common.source, common.kept = None, ()
        return result


def fuse(model: nn.Module) -> None:
    """Join what can be joined, a layer at a time, so that hardly more memory is needed than before."""
    for module in list(model.modules()):
        for names in _TOGETHER:
            linears: list[Any] = [getattr(module, name, None) for name in names]
            if all(type(linear) is nn.Linear for linear in linears) and _are_alike(linears):
                common = Common(linears)
                for index, name in enumerate(names):
                    setattr(module, name, Part(common, index))


def _are_alike(linears: list[nn.Linear]) -> bool:
    kinds = {(linear.in_features, linear.bias is None, linear.weight.dtype, linear.weight.device) for linear in linears}
    return len(kinds) == 1
