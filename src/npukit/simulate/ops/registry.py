"""What the simulated NPU knows about each operator: its reference kernel, if it has one, and its traits.

The C++ side reads both once, when torch_npu initialises the runtime.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from npukit.facts.aclnn import Limit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


@dataclass(frozen=True)
class Traits:
    """Properties of an operator other than its computation."""

    host_tensors: bool = False
    """CPU tensors, such as indices or lengths, may stand beside NPU tensors, as torch_npu allows."""
    host_indices: bool = False
    """CPU tensors may stand in its list of indices, and nowhere else."""
    values: bool = False
    """It computes in shapes-only mode too: its result steers Python, or the shape of its result is a value."""
    product: bool = False
    """It multiplies and adds up: half-precision arguments are widened to fp32, and its results are rounded once."""
    labels: bool = False
    """Its labels may be int32, as CANN takes them; PyTorch's CPU kernel wants int64."""
    kept: bool = False
    """torch_npu's own code stays: it ends in the runtime, not in a kernel of the card."""
    limits: tuple[Limit, ...] = ()
    """What CANN refuses, as far as that is certain."""


KERNELS: dict[str, Callable[..., Any]] = {}
"""Full operator name, such as `npu::npu_rms_norm`, to the function that computes it on CPU or meta tensors."""

TRAITS: dict[str, Traits] = {}
"""Its traits: under the full name, or, where there is no kernel, under the name that its overloads share."""

draw_generator: Callable[[torch.Generator | None], torch.Generator] | None = None
"""Set by the simulator: a CPU generator at the NPU's seed and offset (or a given generator's), which it advances."""


def kernel(
    *names: str, product: bool = False, out: Sequence[str] = (), functional: str = "", changes: Sequence[int] = (0,)
) -> Callable[[Kernel], Kernel]:
    """Register a function as the simulated kernel of operators. Names without a namespace are torch_npu's.

    `out` names the operators that compute the same into a given tensor. `functional` names the operator that computes
    on copies of the arguments that an in-place kernel changes (those at the positions `changes`), and returns them.
    torch_npu's own operators all take host tensors.

    >>> @kernel("npu_sort_v2", out=["npu_sort_v2.out"])
    ... def sort_v2(x, dim=-1): ...
    """

    def register(function: Kernel) -> Kernel:
        kernels: dict[str, Callable[..., Any]] = dict.fromkeys(names, function)
        kernels |= dict.fromkeys(out, _into_out(function))
        if functional:
            kernels[functional] = _on_copies(function, changes)
        for name, computes in kernels.items():
            full = name if "::" in name else f"npu::{name}"
            if full in KERNELS:
                raise ValueError(f"{full} already has a kernel, {KERNELS[full].__module__}.{KERNELS[full].__name__}.")
            KERNELS[full] = computes
            TRAITS[full] = Traits(host_tensors=full.startswith("npu::"), product=product)
        return function

    return register


def _into_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its result written to the tensor `out`, which takes the result's shape."""

    @functools.wraps(function)
    def into_out(*arguments: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        result = function(*arguments, **kwargs)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return into_out


def _on_copies(function: Callable[..., Any], changes: Sequence[int]) -> Callable[..., Any]:
    """The function applied to copies of the tensors, or lists of tensors, that it changes; it returns these copies."""

    def copy(value: Any) -> Any:
        return [tensor.clone() for tensor in value] if isinstance(value, list) else value.clone()

    @functools.wraps(function)
    def on_copies(*arguments: Any, **kwargs: Any) -> Any:
        copied = [copy(value) if place in changes else value for place, value in enumerate(arguments)]
        function(*copied, **kwargs)
        changed = tuple(copied[place] for place in changes)
        return changed if len(changed) > 1 else changed[0]

    return on_copies


def traits(*names: str, **which: Any) -> None:
    """Set traits of operators without a kernel here, which PyTorch's CPU kernels or torch_npu's code compute.

    >>> traits("aten::nonzero", "aten::unique_dim", values=True)
    """
    for name in names:
        if name in TRAITS:
            raise ValueError(f"{name} already has traits.")
        TRAITS[name] = Traits(**which)


def set_limits(limits: Mapping[str, tuple[Limit, ...]]) -> None:
    """Set the card's limits for operators, which may already have other traits.

    >>> set_limits(aclnn.limits("9.1.0", "910B3"))
    """
    for name, of_arguments in limits.items():
        shared = None if name in KERNELS else TRAITS.get(name.partition(".")[0])
        TRAITS[name] = replace(TRAITS.get(name) or shared or Traits(), limits=of_arguments)


def generator(given: torch.Generator | None = None) -> torch.Generator:
    """A CPU generator with the NPU's (or the given one's) seed and offset; outside of operators, torch's seed."""
    return draw_generator(given) if draw_generator else given or torch.Generator().manual_seed(torch.initial_seed())
