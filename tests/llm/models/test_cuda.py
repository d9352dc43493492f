"""What is computed in another way on CUDA than elsewhere. Run where there is a GPU; CI has none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from npukit.llm.models import lora
from npukit.llm.models.attention import packed_attention
from npukit.llm.models.loss import cross_entropy_of, give_loss, sampled_log_probabilities

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [64, 5001])
def test_the_kernel_computes_the_loss_and_its_gradients(words: int, dtype: torch.dtype) -> None:
    hidden = torch.randn(300, 16, device="cuda", dtype=dtype, requires_grad=True)
    weight = torch.randn(words, 16, device="cuda", dtype=dtype, requires_grad=True)
    labels = torch.randint(0, words, (300,), device="cuda")
    labels[::3] = -100
    loss = cross_entropy_of(hidden, weight, labels)
    expected = F.cross_entropy((hidden @ weight.T).float(), labels)
    assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(result_ * 100, (hidden, weight)) for result_ in (loss, expected))
    assert_close(ours, theirs, **({"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("words", [64, 5001])
def test_the_kernel_computes_likelihoods_and_their_gradients(words: int, dtype: torch.dtype) -> None:
    head = nn.Linear(16, words, bias=False, device="cuda", dtype=dtype).requires_grad_(False)
    give_loss(head)
    hidden = torch.randn(300, 16, device="cuda", dtype=dtype, requires_grad=True)
    labels = torch.randint(0, words, (300,), device="cuda")
    expected = ((hidden @ head.weight.T).float() / 0.7).log_softmax(-1)
    chosen, entropies = expected[torch.arange(300), labels], -(expected.exp() * expected).sum(-1)
    ours = sampled_log_probabilities(head, hidden, labels, 0.7)
    assert_close(ours, (chosen, entropies.detach()))
    factors = torch.randn(300, device="cuda")
    gradients = [torch.autograd.grad(logprobs, hidden, factors)[0] for logprobs in (ours[0], chosen)]
    assert_close(*gradients, **({"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {}))


@pytest.mark.parametrize("window", [None, 5])
def test_packed_attention_is_that_of_rows_alone(window: int | None) -> None:
    def heads(number: int) -> Tensor:
        return torch.randn(1, number, 60, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    query, key, value = heads(6), heads(2), heads(2)
    ends = (7, 40, 60)
    borders = torch.tensor([0, *ends], dtype=torch.int32, device="cuda")
    parts = (nn.Module(), query, key, value, None)
    ours = packed_attention(*parts, sliding_window=window, cu_seqlens=borders, max_length=40)[0]
    theirs = packed_attention(*parts, sliding_window=window, row_ends=ends)[0]
    assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
    upstream = torch.randn_like(ours)
    gradients = (torch.autograd.grad(result_, (query, key, value), upstream) for result_ in (ours, theirs))
    assert_close(*gradients, atol=5e-2, rtol=5e-2)
    dropped = packed_attention(*parts, cu_seqlens=borders, max_length=40, dropout=0.5)[0]
    assert (dropped[0, 0] == 0).any()  # the first token sees itself alone, so some heads see nothing


@pytest.mark.parametrize("rank", [16, 64])
def test_gated_layers_with_lora_are_those_of_the_cpu(rank: int) -> None:
    rows, columns = 150, 700
    wide, thin, tall = ((size, width) for size, width in ((rows, columns), (rows, rank), (columns, rank)))
    gate, up, slope = (torch.randn(wide, dtype=torch.bfloat16) for _ in range(3))
    narrow, of_down = (torch.randn(thin, dtype=torch.bfloat16) for _ in range(2))
    matrices = [torch.randn(tall, dtype=torch.bfloat16) for _ in range(3)]
    for operator, given in (
        (lora.gated, (gate, up, narrow, *matrices)),
        (lora.gated_backward, (slope, of_down, gate, up, narrow, *matrices)),
    ):
        for own, expected in zip(operator(*(part.cuda() for part in given)), operator(*given), strict=True):
            assert (own.cpu().float() - expected.float()).norm() < 1e-2 * expected.float().norm()
