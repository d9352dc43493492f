"""Products of half-precision tensors are the fp32 product rounded once; and take about as long as it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randn

from npukit.simulate import in_process

HALVES = (torch.float16, torch.bfloat16)
PRODUCTS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((20, 300), (300, 10))),
    "addmm": (lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), ((10,), (20, 300), (300, 10))),
    "addmm_": (lambda x, a, b: x.clone().addmm_(a, b), ((20, 10), (20, 300), (300, 10))),
    "bmm": (torch.bmm, ((3, 20, 30), (3, 30, 10))),
    "baddbmm": (torch.baddbmm, ((3, 20, 10), (3, 20, 30), (3, 30, 10))),
    "addbmm": (torch.addbmm, ((20, 10), (3, 20, 30), (3, 30, 10))),
    "matmul": (torch.matmul, ((2, 3, 20, 30), (30, 10))),
    "matmul of vectors": (torch.matmul, ((300,), (300,))),
    "mv": (torch.mv, ((20, 300), (300,))),
    "addmv": (torch.addmv, ((20,), (20, 300), (300,))),
    "dot": (torch.dot, ((300,), (300,))),
    "linear": (F.linear, ((2, 7, 300), (10, 300), (10,))),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), ((3, 20, 30), (3, 10, 30))),
    "conv1d": (F.conv1d, ((2, 3, 16), (8, 3, 3), (8,))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), ((2, 4, 9, 9), (8, 4, 3, 3), (8,))),
    "conv2d by groups": (lambda x, w: F.conv2d(x, w, groups=4), ((2, 4, 9, 9), (8, 1, 3, 3))),
    "conv3d": (F.conv3d, ((1, 2, 6, 6, 6), (3, 2, 3, 3, 3), (3,))),
    "conv_transpose1d": (F.conv_transpose1d, ((2, 3, 8), (3, 8, 3), (8,))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), ((2, 3, 8, 8), (3, 8, 3, 3))),
    "conv_transpose3d": (F.conv_transpose3d, ((1, 2, 4, 4, 4), (2, 3, 3, 3, 3))),
    "attention": (F.scaled_dot_product_attention, ((2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8))),
}

pytestmark = pytest.mark.skipif(in_process.cpu_multiplies_bf16(), reason="this CPU multiplies bf16 itself")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_and_its_gradients_are_rounded_once(name: str, dtype: torch.dtype) -> None:
    function, shapes = PRODUCTS[name]
    torch.manual_seed(0)
    inputs = [randn(shape).to(dtype) for shape in shapes]
    (actual, *of_found), (expected, *of_expected) = (
        _with_gradients(function, [convert(x) for x in inputs])
        for convert in (lambda x: x.npu(), lambda x: x.float().npu())
    )
    assert actual.dtype == dtype
    assert torch.equal(actual, expected.to(dtype))
    for grad, wide in zip(of_found, of_expected, strict=True):
        # Sums over a batch are operators of their own, with a rounding of their own.
        torch.testing.assert_close(grad.float(), wide, rtol=3 * torch.finfo(dtype).eps, atol=3 * torch.finfo(dtype).eps)


def _with_gradients(function: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.requires_grad_() for x in inputs]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out.float().sum(), leaves)]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_outputs_that_are_given_are_rounded_into_resized_and_keep_their_strides(dtype: torch.dtype) -> None:
    a, b = randn(20, 300).to(dtype).npu(), randn(300, 10).to(dtype).npu()
    expected = (a.float() @ b.float()).to(dtype)
    empty, strided = a.new_empty(0), a.new_empty(10, 20).T
    for out in (empty, strided):
        assert torch.mm(a, b, out=out) is out
        assert torch.equal(out, expected)
    assert strided.stride() == (1, 20)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_loss_is_rounded_once(dtype: torch.dtype) -> None:
    x, target = randn(10, 64).to(dtype).npu(), torch.rand(10, 64).to(dtype).npu()
    exact = F.binary_cross_entropy_with_logits(x.float(), target.float(), reduction="sum")
    assert torch.equal(F.binary_cross_entropy_with_logits(x, target, reduction="sum"), exact.to(dtype))


def test_mixed_types_are_refused_as_elsewhere() -> None:
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.mm(randn(2, 2).half().npu(), randn(2, 2).npu())


def test_temporaries_are_not_the_cards_memory() -> None:
    a = randn(512, 512, dtype=torch.bfloat16, device="npu")
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.max_memory_allocated()
    product = a @ a
    assert torch.npu.max_memory_allocated() - before < 1.1 * product.nbytes
