"""The simulated ops of mixtures of experts: where tokens go, and that they come back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import grouped, moe, moe_permute

TOKENS, EXPERTS, TOPK = 6, 4, 2


@pytest.fixture
def tokens() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(TOKENS, 5)


@pytest.fixture
def experts() -> Tensor:
    torch.manual_seed(1)
    return torch.stack([torch.randperm(EXPERTS)[:TOPK] for _ in range(TOKENS)]).int()


def test_permuted_tokens_are_sorted_by_expert_and_come_back(tokens: Tensor, experts: Tensor) -> None:
    rows, indices = moe_permute.token_permute(tokens, experts)
    order = experts.flatten().sort(stable=True).indices
    assert torch.equal(rows, tokens[order // TOPK])
    probabilities = torch.full((TOKENS, TOPK), 0.5)
    back, _ = moe_permute.token_unpermute(rows, indices, probabilities)
    torch.testing.assert_close(back, tokens)


def test_gradients_of_permute_and_unpermute(tokens: Tensor, experts: Tensor) -> None:
    rows, indices = moe_permute.token_permute(tokens, experts)
    probabilities = torch.rand(TOKENS, TOPK)
    leaves = [t.clone().requires_grad_() for t in (tokens, probabilities)]
    order = experts.flatten().sort(stable=True).indices
    permuted = leaves[0][order // TOPK]
    unpermuted = (permuted[order.argsort()].reshape(TOKENS, TOPK, -1) * leaves[1].unsqueeze(-1)).sum(1)
    grad = torch.randn_like(unpermuted)
    expected = torch.autograd.grad(unpermuted, leaves, grad)
    drows, dprobs = moe_permute.token_unpermute_grad(rows, grad, indices, probabilities)
    dtokens = moe_permute.token_permute_grad_v2(drows, indices, TOKENS, torch.float32, TOPK)
    assert dprobs is not None
    torch.testing.assert_close((dtokens, dprobs), expected)


def test_num_out_tokens_drops_the_last_copies(tokens: Tensor, experts: Tensor) -> None:
    rows, indices = moe_permute.token_permute(tokens, experts, num_out_tokens=7)
    assert rows.shape == (7, 5)
    back, _ = moe_permute.token_unpermute(rows, indices, torch.ones(TOKENS, TOPK))
    kept = (indices.reshape(TOKENS, TOPK) < 7).sum(1, keepdim=True)
    torch.testing.assert_close(back, tokens * kept)


@pytest.mark.parametrize("padded", [False, True])
def test_a_routing_map_and_back(tokens: Tensor, experts: Tensor, padded: bool) -> None:
    routing = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool).scatter(1, experts.long(), True)
    probabilities = torch.rand(TOKENS, EXPERTS) * routing
    count = EXPERTS * TOKENS if padded else TOKENS * TOPK
    rows, picked, indices = moe_permute.permute_with_routing_map(
        tokens, routing, probs=probabilities, num_out_tokens=count, drop_and_pad=padded
    )
    assert picked is not None
    assert rows.shape == (count, 5)
    restored, *_ = moe_permute.unpermute_with_routing_map(
        rows, indices, [TOKENS, 5], probs=probabilities, routing_map=routing, drop_and_pad=padded
    )
    torch.testing.assert_close(restored, tokens * probabilities.sum(1, keepdim=True))

    def weighted(t: Tensor, p: Tensor) -> Tensor:
        return t * p.sum(1, keepdim=True)

    leaves = [t.clone().requires_grad_() for t in (tokens, probabilities)]
    grad = torch.randn(TOKENS, 5)
    expected = torch.autograd.grad(weighted(*leaves), leaves, grad)
    ranked = indices.sort(stable=True)
    out_index, token_id = (ranked.indices.int(), ranked.values) if padded else (indices, indices)
    drows, dprobs = moe_permute.unpermute_with_routing_map_grad(
        grad, out_index, token_id, routing, rows, probabilities, padded, [TOKENS, 5]
    )
    dtokens, _ = moe_permute.permute_with_routing_map_grad(drows, None, indices, routing, EXPERTS, TOKENS, padded)
    assert dprobs is not None
    torch.testing.assert_close(dtokens, expected[0])
    torch.testing.assert_close(dprobs * routing, expected[1] * routing)


def test_init_routing_and_finalize_give_the_tokens_back(tokens: Tensor, experts: Tensor) -> None:
    row_numbers = torch.arange(TOKENS * TOPK, dtype=torch.int32).reshape(TOPK, TOKENS).T.contiguous()
    rows, places, sorted_experts = moe.init_routing(tokens, row_numbers, experts, TOKENS)
    assert torch.equal(sorted_experts, experts.flatten().sort().values)
    ends = moe.compute_expert_tokens(sorted_experts, EXPERTS)
    assert torch.equal(ends.long(), torch.bincount(experts.flatten(), minlength=EXPERTS).cumsum(0))
    back = moe.finalize_routing(rows, None, None, None, torch.full((TOKENS, TOPK), 0.5), places, experts)
    torch.testing.assert_close(back, tokens)


def test_init_routing_v2_counts_and_leaves_out_other_experts(tokens: Tensor, experts: Tensor) -> None:
    rows, numbers, counts, _ = moe.init_routing_v2(
        tokens, experts, expert_num=EXPERTS, expert_tokens_num_type=1, expert_tokens_num_flag=True,
        active_expert_range=[1, 3],
    )  # fmt: skip
    inside = (experts.flatten() >= 1) & (experts.flatten() < 3)
    assert torch.equal(counts, torch.bincount(experts.flatten(), minlength=EXPERTS)[1:3])
    assert torch.equal(numbers >= 0, inside)
    source = torch.arange(TOKENS * TOPK)[inside] // TOPK
    assert torch.equal(rows[numbers[inside].long()], tokens[source])


def test_init_routing_v2_pads_to_the_capacity(tokens: Tensor, experts: Tensor) -> None:
    rows, numbers, counts, _ = moe.init_routing_v2(
        tokens, experts, expert_num=EXPERTS, expert_capacity=2, drop_pad_mode=1, expert_tokens_num_flag=True,
    )  # fmt: skip
    assert rows.shape == (EXPERTS, 2, 5)
    kept = numbers >= 0
    assert int(kept.sum()) == int(counts.clamp(max=2).sum())
    flat = rows.reshape(-1, 5)
    assert torch.equal(flat[numbers[kept].long()], tokens[torch.arange(TOKENS * TOPK)[kept] // TOPK])


def test_re_routing_sorts_by_expert_and_then_rank() -> None:
    counts = torch.tensor([[1, 2], [2, 0]])  # two ranks, two experts
    tokens = torch.arange(5.0).unsqueeze(1)
    rows, _, source, number = moe.re_routing(tokens, counts)
    assert source.tolist() == [0, 3, 4, 1, 2]
    assert torch.equal(rows, tokens[source.long()])
    assert number.tolist() == [3, 2]


def test_gating_chooses_among_the_best_groups_and_weighs_without_the_bias() -> None:
    logits = torch.tensor([[0.1, 0.2, 3.0, 0.0, 2.0, 2.5]])
    bias = torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    weights, experts, scores = moe.gating_top_k(logits, 2, bias=bias, k_group=1, group_count=3, norm_type=1)
    assert experts.tolist() == [[1, 0]]
    expected = logits.sigmoid()[:, [1, 0]]
    torch.testing.assert_close(weights, expected / expected.sum())
    torch.testing.assert_close(scores, logits.sigmoid())


def test_grouped_matmul_sums_over_groups_and_handles_lists() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 6), torch.randn(6, 3)
    (out,) = grouped.grouped_matmul([x], [w], group_list=torch.tensor([2, 4]), split_item=3, group_type=2,
                                    group_list_type=1)  # fmt: skip
    torch.testing.assert_close(out, torch.stack((x[:, :2] @ w[:2], x[:, 2:6] @ w[2:6])))
    parts = grouped.grouped_matmul([x, x[:2]], [w, w], group_type=-1, bias=[torch.ones(3), torch.zeros(3)])
    torch.testing.assert_close(parts, [x @ w + 1, x[:2] @ w])
