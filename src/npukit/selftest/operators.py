"""The operators: torch_npu's own on an NPU, and on every device the PyTorch formulas that they implement.

The inputs of a case have values that every dtype can represent, so that one result applies to all dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from npukit.selftest.check import DeviceCheck
from npukit.selftest.operator_cases import CASES, GRADIENTS, Case, Gradient


def formulas() -> Iterator[DeviceCheck]:
    """The formulas in plain PyTorch, and their gradients."""
    return _checks([*CASES, *GRADIENTS], formula)


def operators() -> Iterator[DeviceCheck]:
    """torch_npu's own operators that the installed version has."""
    return (check for check in _checks([*CASES, *GRADIENTS], called) if _operator(check.key.partition("-")[2]))


def _checks(cases: Sequence[Case | Gradient], compute: Callable[..., Sequence[Tensor | None]]) -> Iterator[DeviceCheck]:
    for number, case in enumerate(cases):
        for dtype in case.dtypes:
            key = f"{number}-{case.op}"
            name = f"{key} {str(dtype).removeprefix('torch.')}"
            yield DeviceCheck(name, partial(compute, case, dtype), key, dtype)


def formula(case: Case | Gradient, dtype: torch.dtype, device: torch.device) -> list[Tensor | None]:
    """The result of a case's formula on a device."""
    inputs = _inputs(case, dtype, device)
    with device:  # indices that a formula creates
        if isinstance(case, Case):
            return _listed(case.plain(*inputs))
        leaves = [tensor.requires_grad_() for tensor in inputs]
        output = case.plain(*leaves)
        grads = torch.autograd.grad(output, leaves, _incoming(output), allow_unused=True)
    return [None if which is None else grads[which] for which in case.wanted]


def called(case: Case | Gradient, dtype: torch.dtype, device: torch.device) -> list[Tensor | None]:
    """The result of torch_npu's operator on a device."""
    operator, inputs = _operator(case.op), _inputs(case, dtype, device)
    if isinstance(case, Gradient):
        with device:
            inputs = case.call(_incoming(case.plain(*inputs)), *inputs)
    return _listed(operator(*inputs, **tree_map_only(Tensor, lambda tensor: tensor.to(device), case.options)))


def _inputs(case: Case | Gradient, dtype: torch.dtype, device: torch.device) -> Any:
    torch.manual_seed(0)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.bfloat16().to(dtype).to(device) if tensor.is_floating_point() else tensor.to(device)

    return tree_map_only(Tensor, cast, case.inputs())


def _incoming(output: Tensor) -> Tensor:
    """The incoming gradient, which is the same for every dtype."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn(output.shape, generator=draw, device="cpu").bfloat16().to(output.dtype).to(output.device)


def _operator(name: str) -> Any:
    """An operator of torch_npu; None if this version does not have it."""
    namespace, _, rest = name.rpartition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "npu"), base, None), overload or "default", None)


def _listed(result: Any) -> list[Tensor | None]:
    return list(result) if isinstance(result, tuple | list) else [result]
