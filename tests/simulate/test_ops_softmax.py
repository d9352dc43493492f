"""The simulated fused softmaxes against softmax written out, and merged attention against attention over all keys."""

from __future__ import annotations

import pytest
import torch

from npukit.simulate.ops import attention, softmax

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("triangle", [False, True])
def test_scaled_masked_softmax_and_its_gradient(triangle: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32).to(dtype).requires_grad_()
    mask, grad = torch.rand(2, 1, 32, 32) < 0.5, torch.randn(2, 3, 32, 32).to(dtype)
    mask[0, 0, 4] = True
    hide = torch.ones(32, 32, dtype=torch.bool).triu(1) if triangle else mask
    expected = (x.float() * 0.5).masked_fill(hide, -10000.0).softmax(-1)
    (wanted,) = torch.autograd.grad(expected, x, grad.float())
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    y = softmax.scaled_masked_softmax(x.detach(), mask, 0.5, triangle)
    torch.testing.assert_close(y, expected.detach().to(dtype), **close)
    actual = softmax.scaled_masked_softmax_backward(grad, y, mask, 0.5, triangle)
    torch.testing.assert_close(actual, wanted, **close)
    if not triangle:
        torch.testing.assert_close(y[0, :, 4].float(), torch.full((3, 32), 1 / 32), **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_masked_softmax_with_rel_pos_bias(dtype: torch.dtype) -> None:
    x, mask, bias = (torch.randn(shape).to(dtype) for shape in ((4, 2, 3, 8, 8), (1, 2, 1, 8, 8), (1, 1, 3, 8, 8)))
    wanted = (x.float() * 2 + mask.float() + bias.float()).softmax(-1).to(dtype)
    torch.testing.assert_close(softmax.masked_softmax_with_rel_pos_bias(x, mask, bias, 2.0), wanted)
    without = (x.float() + bias.float()).softmax(-1).to(dtype)
    torch.testing.assert_close(softmax.masked_softmax_with_rel_pos_bias(x, None, bias), without)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_attn_softmax_and_its_gradient_write_over_their_argument(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    scores, grad, values = (torch.randn(2, 8, d).to(dtype) for d in (8, 4, 4))
    leaf = scores.clone().float().requires_grad_()
    (wanted,) = torch.autograd.grad(leaf.softmax(-1) @ values.float(), leaf, grad.float())
    assert softmax.attn_softmax_(scores) is scores
    torch.testing.assert_close(scores, leaf.softmax(-1).detach().to(dtype))
    assert softmax.attn_softmax_backward_(scores, grad, values) is scores
    torch.testing.assert_close(scores.float(), wanted, rtol=TOLERANCE[dtype], atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("layout", ["SBH", "TND"])
def test_parts_of_the_keys_merge_to_attention_over_all(layout: str) -> None:
    torch.manual_seed(0)
    shape = (5, 1, 16) if layout == "SBH" else (5, 4, 4)
    q, k, v, k2, v2 = (torch.randn(shape) for _ in range(5))
    lengths = {"actual_seq_qlen": [5], "softmax_layout": "TND"} if layout == "TND" else {}

    def run(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ends = {"actual_seq_kvlen": [len(keys)]} if lengths else {}
        return attention.fusion_attention(q, keys, values, 4, layout, **lengths, **ends)[:3]

    wanted = run(torch.cat((k, k2)), torch.cat((v, v2)))
    arguments = {"input_layout": layout, "input_softmax_layout": "TND" if lengths else ""}
    out, top, total = softmax.ring_attention_update(*run(k, v), *run(k2, v2), **arguments)
    torch.testing.assert_close(out, wanted[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(top + total.log(), wanted[1] + wanted[2].log(), rtol=1e-4, atol=1e-5)


def test_attention_update_weights_by_lse() -> None:
    scores, values = torch.randn(6, 10), torch.randn(10, 8)
    parts = (slice(0, 3), slice(3, 10))
    lse = [scores[:, part].logsumexp(-1) for part in parts]
    out, whole = softmax.attention_update(lse, [scores[:, part].softmax(-1) @ values[part] for part in parts], 1)
    torch.testing.assert_close(out, scores.softmax(-1) @ values)
    torch.testing.assert_close(whole, scores.logsumexp(-1))
