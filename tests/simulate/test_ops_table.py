"""Every simulated kernel of the table against plain PyTorch: values, gradients, and shapes where no values are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import npukit.simulate.ops  # noqa: F401  registers the kernels
from npukit.selftest.operator_cases import CASES, GRADIENTS
from npukit.simulate.ops.registry import KERNELS, TRAITS, traits

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def called(name: str, arguments: Any, options: dict[str, Any]) -> list[Any]:
    """What a kernel returns, called as the simulator does: below autograd."""
    with torch._C._AutoDispatchBelowADInplaceOrView(), torch.no_grad():
        result = KERNELS[name if "::" in name else f"npu::{name}"](*arguments, **options)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def cast(tree: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, tree)


def on_meta(tree: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.to("meta"), tree)


def looks(tree: list[Any]) -> list[Any]:
    return [None if t is None else (tuple(t.shape), t.dtype) for t in tree]


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(c, d, id=f"{i}-{c.op}-{d}") for i, c in enumerate(CASES) for d in c.dtypes],
)
def test_a_kernel_computes_its_formula(case: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = cast(case.inputs(), dtype)
    before = tree_map_only(Tensor, torch.clone, inputs)
    actual = called(case.op, inputs, case.options)
    expected = case.plain(*cast(before, torch.float32))
    for mine, plain in zip(actual, expected if isinstance(expected, (tuple, list)) else [expected], strict=True):
        if plain is not None:
            assert_near(mine, plain, TOLERANCE[dtype])
    assert all(torch.equal(a, b) for a, b in zip(tensors(inputs), tensors(before), strict=True))
    assert looks(called(case.op, on_meta(inputs), on_meta(case.options))) == looks(actual)


def tensors(tree: Any) -> list[Tensor]:
    tensors_: list[Tensor] = []
    tree_map_only(Tensor, tensors_.append, tree)
    return tensors_


@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(c, d, id=f"{i}-{c.op}-{d}") for i, c in enumerate(GRADIENTS) for d in c.dtypes],
)
def test_a_backward_kernel_gives_the_gradients_of_the_formula(case: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs = cast(case.inputs(), dtype)
    leaves = [t.float().requires_grad_() for t in inputs]
    output = case.plain(*leaves)
    grad = torch.randn_like(output).to(dtype)
    expected = torch.autograd.grad(output, leaves, grad.float(), allow_unused=True)
    arguments = case.call(grad, *inputs)
    actual = called(case.op, arguments, case.options)
    for mine, which in zip(actual, case.wanted, strict=True):
        if which is not None:
            plain = expected[which]
            assert plain is not None
            size = max(1.0, float(plain.abs().max()))
            assert_near(mine, plain, TOLERANCE[dtype] * size)
    assert looks(called(case.op, on_meta(arguments), case.options)) == looks(actual)


def test_traits_are_those_of_operators_that_exist_and_are_given_once() -> None:
    names = set(torch._C._dispatch_get_all_op_names())
    names |= KERNELS.keys() | {
        name.partition(".")[0] for name in names
    }  # traits of an operator, or of one of its overloads
    assert [name for name in TRAITS if name.startswith("aten::") and name not in names] == []
    with pytest.raises(ValueError, match="aten::mm already has traits"):
        traits("aten::mm", product=True)
