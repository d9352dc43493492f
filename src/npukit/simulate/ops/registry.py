"""Where reference kernels of torch_npu's own ops are kept, by op name, for the simulated NPU to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

KERNELS: dict[str, Callable[..., Any]] = {}
"""Full op name, such as `npu::npu_rms_norm`, to the function that computes it on CPU or meta tensors."""

draw_generator: Callable[[torch.Generator | None], torch.Generator] | None = None
"""Set by the simulator: a CPU generator at the NPU's seed and offset (or a given generator's), which it advances."""


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a function as the simulated kernel of torch ops; a name without a namespace is an npu op.

    >>> @kernel("npu_fast_gelu", "aten::gelu.out")
    ... def gelu(x): ...
    """

    def register(function: Kernel) -> Kernel:
        for name in names:
            full = name if "::" in name else f"npu::{name}"
            if full in KERNELS:
                raise ValueError(f"{full} already has a kernel, {KERNELS[full].__module__}.{KERNELS[full].__name__}.")
            KERNELS[full] = function
        return function

    return register


def generator(given: torch.Generator | None = None) -> torch.Generator:
    """The CPU generator that follows the NPU's, or the given one's, seed and offset; outside of an op torch's seed."""
    return draw_generator(given) if draw_generator else given or torch.Generator().manual_seed(torch.initial_seed())
