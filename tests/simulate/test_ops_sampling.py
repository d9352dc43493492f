"""Sampling on the device against the same choice written out row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import sampling as ops


def left_over(row: Tensor, k: int, p: float, least: float) -> Tensor:
    """Which words of a row of logits survive, by sets."""
    order = sorted(range(len(row)), key=lambda i: -row[i].item())
    order = order[:k] if 1 <= k <= len(row) else order
    probability = dict(zip(order, row[order].softmax(0).tolist(), strict=True))
    kept, total = [], 0.0
    for word in order:
        if total < p or p >= 1 or not kept:
            kept.append(word)
        total += probability[word]
    if least > 0:
        kept = [w for w in kept if least < 1 and probability[w] >= least * probability[order[0]]] or order[:1]
    return torch.tensor([word in kept for word in range(len(row))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_left_over_and_the_most_probable_of_it(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randperm(6 * 50).view(6, 50) / 32).to(dtype)
    k = torch.tensor([3, 0, 50, 7, 2000, 0], dtype=torch.int32)
    p = torch.tensor([1.0, 0.7, 0.4, 0.6, 0.0, 1.0])
    least = torch.tensor([0.0, 0.0, 0.5, -1.0, 0.0, 1.0])
    chosen, left = ops.top_k_top_p_sample(logits, k, p, min_ps=least, is_need_logits=True, post_sample="None")
    assert torch.equal(chosen, logits.argmax(-1)) and left.dtype == torch.float32
    for row in range(6):
        kept = left_over(logits[row].float(), *(x[row].item() for x in (k, p, least)))
        assert torch.equal(left[row], torch.where(kept, logits[row].float(), -torch.inf)), row


def test_noise_decides_among_what_is_left() -> None:
    torch.manual_seed(0)
    logits, k, p = torch.randn(200, 8), torch.full((200,), 3), torch.ones(200)
    noise = torch.empty(200, 8).exponential_()
    chosen, _ = ops.top_k_top_p_sample(logits, k, p, noise)
    values, words = logits.topk(3)
    expected = words.gather(1, (values.softmax(-1) / noise[:, :3]).argmax(-1, keepdim=True)).squeeze(1)
    assert torch.equal(chosen, expected)
    unsorted, _ = ops.top_k_top_p_sample(logits, torch.zeros(200), p, noise)
    assert torch.equal(unsorted, (logits.softmax(-1) / noise).argmax(-1))


def test_draws_follow_the_probabilities_and_the_generator() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.2])).expand(20000, 3)
    arguments: dict[str, Any] = {"top_k": torch.full((20000,), 2), "top_p": torch.ones(20000)}
    draws = [
        ops.top_k_top_p_sample(
            logits, **arguments, post_sample="multiNomial", generator=torch.Generator().manual_seed(seed)
        )[0]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    share = draws[0].bincount(minlength=3) / 20000
    torch.testing.assert_close(share, torch.tensor([0.625, 0.375, 0.0]), rtol=0, atol=0.02)


def test_probabilities_as_input_are_not_normalised_again() -> None:
    shares = torch.tensor([[0.1, 0.6, 0.3]])
    chosen, left = ops.top_k_top_p_sample(
        shares, torch.tensor([0]), torch.tensor([0.7]), input_is_logits=False, is_need_logits=True
    )
    assert chosen.item() == 1
    torch.testing.assert_close(left, torch.tensor([[0.0, 0.6, 0.3]]))
