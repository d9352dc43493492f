"""Simulated ops that training uses and that are more than one formula: dropout, optimizers, SyncBatchNorm's parts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import aten_missing as aten
from npukit.simulate.ops import dropout, losses, misc, optimizers, recurrent
from npukit.simulate.ops.dropout_mask import unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dropout_scales_what_it_keeps_and_its_backward_drops_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(130, 9, dtype=dtype)
    y, mask = dropout.dropout(x, 0.25)
    assert mask.dtype == torch.uint8
    assert mask.shape == ((130 * 9 + 127) // 128 * 16,)
    kept = y != 0
    assert 0.7 < kept.float().mean() < 0.8
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / 0.75))
    assert torch.equal(dropout.dropout_backward(x, mask, 0.25), y)
    assert torch.equal(dropout.dropout_do_mask(x, mask, 0.25)[0], y)


def test_dropout_of_everything_is_zero() -> None:
    assert not dropout.dropout(torch.ones(5), 1.0)[0].any()


def test_a_mask_follows_its_seed_and_offset() -> None:
    def mask(offset: int) -> Tensor:
        return dropout.dropout_gen_mask_from_seed(torch.empty(0), [64, 8], 0.5, 7, offset)

    assert torch.equal(mask(0), mask(0))
    assert not torch.equal(mask(0), mask(12))


def test_dropout_with_add_softmax_and_its_gradient() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    mask, softmax, y = dropout.dropout_with_add_softmax(x, bias, 0.5, 0.3, -1)
    torch.testing.assert_close(softmax, (bias + 0.5 * x).softmax(-1))
    keep = mask[: x.numel()].reshape(x.shape)
    torch.testing.assert_close(y, softmax * keep / 0.7)
    leaf = x.clone().requires_grad_()
    grad = torch.randn_like(x)
    (expected,) = torch.autograd.grad((bias + 0.5 * leaf).softmax(-1) * keep / 0.7, leaf, grad)
    actual, _ = dropout.dropout_with_add_softmax_backward(grad, mask, softmax, 0.5, 0.3, -1)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_apply_adam_w_steps_as_torch_does(amsgrad: bool) -> None:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(5))
    var, m, v, highest = parameter.detach().clone(), torch.zeros(5), torch.zeros(5), torch.zeros(5)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.2, amsgrad=amsgrad)
    for step in range(3):
        parameter.grad = torch.randn(5)
        optimizer.step()
        optimizers.apply_adam_w(
            0.9**step, 0.999**step, 0.1, 0.2, 0.9, 0.999, 1e-8, parameter.grad, highest if amsgrad else None, amsgrad,
            False, out=[var, m, v],
        )  # fmt: skip
        torch.testing.assert_close(var, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_apply_adam_corrects_the_rate() -> None:
    var, m, v, grad = torch.ones(3), torch.zeros(3), torch.zeros(3), torch.tensor([1.0, -2.0, 3.0])
    optimizers.apply_adam(0.9, 0.999, 0.1, 0.9, 0.999, 1e-8, grad, False, False, out=[var, m, v])
    torch.testing.assert_close(var, 1 - 0.1 * grad.sign(), rtol=1e-4, atol=1e-4)


def test_bert_apply_adam_clips_and_decays() -> None:
    state = [torch.ones(2), torch.zeros(2), torch.zeros(2)]
    grad = torch.tensor([3.0, 4.0])
    optimizers.bert_apply_adam(0.1, 0.9, 0.99, 1e-6, grad, 1.0, 5.0, 0.5, out=state)
    clipped = grad / 5
    m, v = 0.1 * clipped, 0.01 * clipped**2
    torch.testing.assert_close(state, [1 - 0.1 * (m / (v.sqrt() + 1e-6) + 0.5), m, v])


def stacked(pairs: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*pairs, strict=True)]


def test_parts_of_sync_batch_norm_are_batch_norm_of_all_ranks() -> None:
    torch.manual_seed(0)
    ranks = [torch.randn(4, 3, 5), torch.randn(2, 3, 5)]
    whole = torch.cat(ranks).requires_grad_()
    weight, bias = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    expected_mean, expected_var = torch.zeros(3), torch.ones(3)
    expected = torch.nn.functional.batch_norm(whole, expected_mean, expected_var, weight, bias, training=True)
    grad = torch.randn_like(expected)
    expected.backward(grad)

    counts = torch.tensor([20, 10])
    running = torch.zeros(3), torch.ones(3)
    means, invstds = stacked(aten.batch_norm_stats(r, 1e-5) for r in ranks)
    mean, invstd = aten.batch_norm_gather_stats_with_counts(ranks[0], means, invstds, *running, 0.1, 1e-5, counts)
    torch.testing.assert_close(running, (expected_mean, expected_var), rtol=1e-4, atol=1e-5)
    sums, squares = stacked(aten.batch_norm_reduce(r, 1e-5) for r in ranks)
    other = aten.batch_norm_gather_stats_update(ranks[0], sums, squares, None, None, 0.1, 1e-5, counts)
    torch.testing.assert_close(other, (mean, invstd), rtol=1e-4, atol=1e-5)

    with torch.no_grad():
        reduced = [
            aten.batch_norm_backward_reduce(g, r, mean, invstd, weight, True, True, True)
            for g, r in zip(grad.split([4, 2]), ranks, strict=True)
        ]
        sum_dy, sum_dy_xmu, dweight, dbias = (sum(parts) for parts in zip(*reduced, strict=True))
        output = [aten.batch_norm_elemt(r, weight, bias, mean, invstd, 1e-5) for r in ranks]
        dx = [
            aten.batch_norm_backward_elemt(g, r, mean, invstd, weight, sum_dy, sum_dy_xmu, counts)
            for g, r in zip(grad.split([4, 2]), ranks, strict=True)
        ]
    torch.testing.assert_close(torch.cat(output), expected.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.cat(dx), whole.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close((dweight, dbias), (weight.grad, bias.grad), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_masked_lstm_stands_still_where_a_sequence_has_ended(reverse: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(3, 5, bidirectional=reverse)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    w_ih, w_hh, b_ih, b_hh = (getattr(layer, f"{n}_l0{'_reverse' if reverse else ''}").detach() for n in names)
    x, lengths = torch.randn(4, 2, 3), torch.tensor([4, 2])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(layer(packed)[0])
    zeros = torch.zeros(1, 2, 5)
    mask = (torch.arange(4).unsqueeze(1) < lengths).unsqueeze(-1).expand(4, 2, 5).half()
    actual = recurrent.lstm_data(
        x, packed.batch_sizes, torch.cat((w_ih, w_hh), 1).T, b_ih + b_hh, mask, zeros, zeros, True, 1, 0.0, True,
        reverse, False, True, reverse,
    )  # fmt: skip
    torch.testing.assert_close(actual[0], expected[..., 5:].detach() if reverse else expected.detach())


def test_fused_lstm_cell_and_its_backward() -> None:
    torch.manual_seed(0)
    gates, hidden, c = torch.randn(2, 20), torch.randn(2, 20), torch.randn(2, 5)
    leaves = [t.clone().requires_grad_() for t in (gates, c)]
    i, f, g, o = (leaves[0] + hidden).chunk(4, -1)
    cy = f.sigmoid() * leaves[1] + i.sigmoid() * g.tanh()
    hy = o.sigmoid() * cy.tanh()
    dh, dc = torch.randn(2, 5), torch.randn(2, 5)
    expected = torch.autograd.grad((hy, cy), leaves, (dh, dc))
    found_h, found_c, workspace = recurrent.fused_lstm_cell(gates, hidden, c)
    torch.testing.assert_close((found_h, found_c), (hy.detach(), cy.detach()))
    dgates, dcx, dbias = recurrent.fused_lstm_cell_backward(dh, dc, c, found_c, workspace, True)
    torch.testing.assert_close((dgates, dcx), expected)
    torch.testing.assert_close(dbias, expected[0].sum(0))


def test_sign_bits_are_packed_and_unpacked() -> None:
    x = torch.tensor([1.0, -2.0, 0.0, -1.0, 5.0, 6.0, -7.0, 8.0, -1.0])
    packed = misc.sign_bits_pack(x, 1)
    assert packed.tolist() == [[0b10110101, 0]]
    signs = misc.sign_bits_unpack(packed.flatten(), 1, torch.float32)
    assert torch.equal(signs[0, :9], torch.where(x >= 0, 1.0, -1.0))


@pytest.mark.parametrize("with_softmax", [False, True])
def test_cross_entropy_over_a_vocabulary_that_two_ranks_share(with_softmax: bool) -> None:
    torch.manual_seed(0)
    x, weight, target = torch.randn(5, 4), torch.randn(6, 4), torch.tensor([0, 5, 2, 3, 1])
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    expected = torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, target, reduction="none")
    grad = torch.randn(5)
    expected.backward(grad)
    ranks = [losses.linear_online_max_sum(x, weight[i : i + 3], target, i, i + 2, True) for i in (0, 3)]
    tops = torch.stack([r[0] for r in ranks])
    top = tops.amax(0)
    total = sum(r[1] * (r[0] - top).exp() for r in ranks)
    shifts = [unpack(r[3], 5).logical_not() * (r[0] - top) for r in ranks]
    predicted = sum(r[2] + shift for r, shift in zip(ranks, shifts, strict=True))
    dx = torch.zeros_like(x)
    for i, rank in zip((0, 3), ranks, strict=True):
        loss, softmax = losses.cross_entropy_with_max_sum(top, total, predicted, vocab_parallel_logits=rank[5])
        torch.testing.assert_close(loss, expected.detach())
        part, dweight = losses.linear_cross_entropy_backward(
            grad, x, weight[i : i + 3], rank[3], rank[4], 0.0, top, total, softmax if with_softmax else None
        )
        dx += part
        torch.testing.assert_close(dweight, leaves[1].grad[i : i + 3])
    torch.testing.assert_close(dx, leaves[0].grad)
