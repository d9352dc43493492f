"""With NPUKIT_SIM_HF32=on, float32 products are rounded as torch_npu's switches say; test_on_npu.py sets it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randn

from npukit.simulate.ops.hf32 import hf32

pytestmark = pytest.mark.skipif(os.environ.get("NPUKIT_SIM_HF32") != "on", reason="HF32 is off")
npu: Any = torch.npu


@pytest.fixture(autouse=True)
def switches_as_before() -> Iterator[None]:
    before = npu.conv.allow_hf32, npu.matmul.allow_hf32
    yield
    npu.conv.allow_hf32, npu.matmul.allow_hf32 = before


def test_eleven_bits_are_kept_and_ties_go_to_even() -> None:
    x = torch.tensor([1 + 2**-11, 1 + 2**-12, 1 + 3 * 2**-12, -(1 + 2**-12 + 2**-20), torch.inf, torch.nan])
    expected = torch.tensor([1 + 2**-11, 1, 1 + 2**-10, -(1 + 2**-11), torch.inf, torch.nan])
    assert torch.equal(hf32(x).view(torch.int32), expected.view(torch.int32))


def test_convolutions_round_unless_it_is_switched_off() -> None:
    x, weight, bias = randn(2, 4, 9, 9), randn(8, 4, 3, 3), randn(8)
    actual = F.conv2d(x.npu(), weight.npu(), bias.npu()).cpu()
    torch.testing.assert_close(actual, F.conv2d(hf32(x), hf32(weight), bias))
    assert not torch.allclose(actual, F.conv2d(x, weight, bias), atol=1e-5)
    npu.conv.allow_hf32 = False
    torch.testing.assert_close(F.conv2d(x.npu(), weight.npu(), bias.npu()).cpu(), F.conv2d(x, weight, bias))


def test_gradients_of_a_convolution_are_products_of_rounded_factors_but_for_the_bias() -> None:
    x, weight, bias, grad = randn(2, 4, 9, 9), randn(8, 4, 3, 3), randn(8), randn(2, 8, 7, 7)
    expected = [*_gradients(hf32(x), hf32(weight), bias, hf32(grad))[:2], grad.sum((0, 2, 3))]
    actual = _gradients(x.npu(), weight.npu(), bias.npu(), grad.npu())
    torch.testing.assert_close([gradient.cpu() for gradient in actual], expected)


def _gradients(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> list[Tensor]:
    leaves = [tensor.detach().requires_grad_() for tensor in (x, weight, bias)]
    return list(torch.autograd.grad(F.conv2d(leaves[0], leaves[1], leaves[2]), leaves, grad))


def test_matrix_products_round_only_when_it_is_switched_on() -> None:
    x, weight, bias = randn(20, 300), randn(10, 300), randn(10)
    torch.testing.assert_close(F.linear(x.npu(), weight.npu(), bias.npu()).cpu(), F.linear(x, weight, bias))
    npu.matmul.allow_hf32 = True
    actual = F.linear(x.npu(), weight.npu(), bias.npu()).cpu()
    torch.testing.assert_close(actual, F.linear(hf32(x), hf32(weight), bias))
    assert not torch.allclose(actual, F.linear(x, weight, bias), atol=1e-4)
