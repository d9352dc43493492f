"""The simulated npu_multi_head_attention against the same layers written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import dropout_mask, multi_head_attention

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def written_out(tensors: list[Tensor], mask: Tensor, keep: Tensor) -> Tensor:
    query, key, value, wq, wk, wv, wo, bq, bk, bv, bo = (x.float() for x in tensors)
    split = [
        (x @ w.T + b).view(2, -1, 4, 8).transpose(1, 2) for x, w, b in ((query, wq, bq), (key, wk, bk), (value, wv, bv))
    ]
    weights = (split[0] @ split[1].mT * 8**-0.5 + mask.float()).softmax(-1) * keep / 0.7
    return (weights @ split[2]).transpose(1, 2).reshape(-1, 32) @ wo.T + bo


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_forward_and_gradients(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = [(12, 32), (20, 32), (20, 32)] + 4 * [(32, 32)] + 4 * [(32,)]
    tensors = [(torch.randn(shape) * 0.4).to(dtype).requires_grad_() for shape in shapes]
    mask, keep = torch.randn(2, 4, 6, 10).to(dtype), torch.rand(2, 4, 6, 10) < 0.7
    expected = written_out(tensors, mask, keep)
    grad = torch.randn(12, 32).to(dtype)
    wanted = dict(enumerate(torch.autograd.grad(expected, tensors, grad.float())))
    q, k, v, wq, wk, wv, wo, bq, bk, bv, bo = given = [x.detach() for x in tensors]
    numbers = 4, 8, 10, 6, 0.3, True
    biases = bq, bk, bv, bo
    actual = multi_head_attention.multi_head_attention(
        q, k, v, wq, wk, wv, mask, wo, *biases, dropout_mask.pack(keep), *numbers
    )
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype], "check_dtype": False}
    torch.testing.assert_close(actual[0], expected.detach(), **close)
    grads = multi_head_attention.multi_head_attention_backward(
        *given[:7], *biases, *actual[2:], grad, actual[1], *numbers
    )
    order = (3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10)
    for got, index in zip(grads, order, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got, wanted[index].view(got.shape), **(close | {"atol": 4 * TOLERANCE[dtype]}))


def test_without_a_mask_dropout_is_drawn_and_shapes_need_no_data() -> None:
    x, weight, mask = torch.randn(32, 32), torch.randn(32, 32) * 0.1, torch.zeros(2, 4, 16, 16)
    arguments = None, None, None, None, None, 4, 8, 16, 16, 0.5, False
    actual, shapes = (
        multi_head_attention.multi_head_attention(
            *3 * [x.to(device)], *3 * [weight.to(device)], mask.to(device), weight.to(device), *arguments
        )
        for device in ("cpu", "meta")
    )
    assert 0.4 < (actual[6] == 0).float().mean() < 0.6
    assert [(a.shape, a.dtype) for a in actual] == [(a.shape, a.dtype) for a in shapes]
