"""HF32 on request: the float32 factors of convolutions and matrix products are rounded to 11 bits of mantissa.

A card of the A2 and A3 series does so where torch_npu's switches allow it, and adds up in fp32. With NPUKIT_SIM_HF32=on
the kernels here stand before the others, and ask the same switches.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from npukit.facts.cards import card
from npukit.simulate.ops import convolutions, linear, registry

_SERIES = ("A2", "A3")
_ATEN: Mapping[str, Sequence[str]] = {
    "conv": (
        "convolution", "_convolution", "convolution_backward", "_slow_conv2d_forward", "_slow_conv2d_backward",
        "slow_conv3d_forward", "slow_conv_dilated2d", "slow_conv_transpose2d", "conv_tbc",
    ),
    "matmul": (
        "mm", "bmm", "matmul", "addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "_addmm_activation",
        "mv", "addmv", "addmv_",
    ),
}  # fmt: skip
_FILES = {convolutions.__name__: "conv", linear.__name__: "matmul"}


def hf32(x: Tensor) -> Tensor:
    """x with 11 bits of mantissa: rounded to the nearest, ties to even.

    >>> hf32(torch.tensor([1 + 2**-11, 1 + 2**-12, 1 + 2**-12 + 2**-20]))
    tensor([1.0005, 1.0000, 1.0005])
    """
    bits = x.view(torch.int32)
    kept = (bits + (bits >> 12 & 1) + 0x7FF) & ~0xFFF
    return torch.where(x.isfinite(), kept.view(torch.float32), x)


def install() -> None:
    """Put the rounding before every kernel of these operators, if it is asked for and the card has HF32."""
    if os.environ.get("NPUKIT_SIM_HF32") != "on" or card(os.environ["NPUKIT_SIM_CARD"]).series not in _SERIES:
        return
    for name, kernel in list(registry.KERNELS.items()):
        if switch := _FILES.get(kernel.__module__):
            registry.KERNELS[name] = _rounding(kernel, list(inspect.signature(kernel).parameters), switch)
    for switch, names in _ATEN.items():
        for name in names:
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                operator = getattr(packet, overload)
                full = f"aten::{name}" + (f".{overload}" if overload != "default" else "")
                arguments = [argument.name for argument in operator._schema.arguments]
                if full not in registry.KERNELS:
                    registry.KERNELS[full] = _rounding(operator, arguments, switch, adds_to_first="add" in name)
                    registry.TRAITS[full] = registry.TRAITS.get(full) or registry.TRAITS[f"aten::{name}"]


def _rounding(
    kernel: Callable[..., Any], names: Sequence[str], switch: str, adds_to_first: bool = False
) -> Callable[..., Any]:
    """The kernel on rounded factors; what is only added (a bias, the first argument of addmm) is no factor."""
    factors = [name != "bias" and not (adds_to_first and i == 0) for i, name in enumerate(names)]
    grad = next((i for i, name in enumerate(names) if name.startswith("grad")), None) if switch == "conv" else None

    @functools.wraps(kernel)
    def rounded(*given: Any, **kwargs: Any) -> Any:
        if not getattr(vars(torch)["npu"], switch).allow_hf32:
            return kernel(*given, **kwargs)
        factored = zip(factors, given, strict=False)  # those by keyword are none
        results = kernel(*(hf32(x) if factor and _is_float(x) else x for factor, x in factored), **kwargs)
        if grad is not None and len(results) == 3 and results[2] is not None and results[2].numel():
            summed = given[grad].sum([0, *range(2, given[grad].dim())])  # the gradient of a bias is no product
            return *results[:2], summed
        return results

    return rounded


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32
