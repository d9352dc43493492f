"""Mixtures of experts in training: copies of tokens sorted by expert, and back, with gradients.

In all of them the sorted indices say, for a token's copy, which permuted row it became.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.simulate.ops.common import dtype_of, gradients, wide
from npukit.simulate.ops.registry import kernel


@kernel("npu_moe_token_permute")
def token_permute(
    tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False
) -> tuple[Tensor, Tensor]:
    """(copies of tokens sorted by expert, each copy's row); a num_out_tokens of 0 or less counts from the end."""
    copies = indices.numel()
    limit = num_out_tokens or 0
    kept = min(limit, copies) if limit > 0 else copies + limit
    order = indices.flatten().sort(stable=True).indices
    rows = tokens[order[:kept] // (copies // indices.shape[0])]
    return rows, order.sort().indices.to(torch.int32)


def _gathered(rows: Tensor, indices: Tensor) -> Tensor:
    """The permuted rows of the indices; those past the end were dropped and are zeros."""
    return torch.where((indices < rows.shape[0]).unsqueeze(-1), rows[indices.clamp(max=rows.shape[0] - 1).long()], 0.0)


@kernel("npu_moe_token_permute_grad_v2")
def token_permute_grad_v2(
    grad: Tensor, sorted_indices: Tensor, tokens_size_0: int, tokens_dtype: int | torch.dtype, num_topk: int,
    padded_mode: bool = False,
) -> Tensor:  # fmt: skip
    """A token's gradient is the sum of its copies'."""
    return _gathered(wide(grad), sorted_indices).reshape(tokens_size_0, num_topk, -1).sum(1).to(dtype_of(tokens_dtype))


@kernel("npu_moe_token_permute_grad")
def token_permute_grad(
    tokens: Tensor, grad: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False
) -> Tensor:
    """The older form of npu_moe_token_permute_grad_v2."""
    copies = indices.numel() // tokens.shape[0]
    return token_permute_grad_v2(grad, sorted_indices, tokens.shape[0], tokens.dtype, copies)


def _unpermuted(rows: Tensor, sorted_indices: Tensor, probs: Tensor | None) -> Tensor:
    copies = _gathered(rows, sorted_indices)
    if probs is None:
        return copies
    return (copies.reshape(probs.shape[0], probs.shape[1], -1) * probs.unsqueeze(-1)).sum(1)


@kernel("_npu_moe_token_unpermute")
def token_unpermute(
    rows: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(a token's copies added up by their probabilities, the rows again for the backward op)."""
    y = _unpermuted(wide(rows), sorted_indices, None if probs is None else wide(probs))
    return y.to(rows.dtype), rows.clone()


@kernel("npu_moe_token_unpermute")
def token_unpermute_alone(
    rows: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The tokens alone, in inference mode; elsewhere torch_npu builds this op from the one above."""
    return token_unpermute(rows, sorted_indices, probs)[0]


@kernel("npu_moe_token_unpermute_grad_v2")
def token_unpermute_grad_v2(
    grad: Tensor, sorted_indices: Tensor, rows_size_0: int, rows_dtype: int | torch.dtype, probs: Tensor | None = None,
    padded_mode: bool = False, restore_shape: list[int] | None = None, rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of the permuted rows and of the probabilities."""
    values = grad.new_zeros(rows_size_0, grad.shape[1]) if rows is None else rows

    def forward(x: Tensor, p: Tensor | None = None) -> Tensor:
        return _unpermuted(x, sorted_indices, p)

    if probs is None:
        return gradients(forward, [wide(values)], wide(grad))[0].to(dtype_of(rows_dtype)), None
    drows, dprobs = gradients(forward, [wide(values), wide(probs)], wide(grad))
    return drows.to(dtype_of(rows_dtype)), dprobs.to(probs.dtype)


@kernel("npu_moe_token_unpermute_grad")
def token_unpermute_grad(
    rows: Tensor, grad: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The older form of npu_moe_token_unpermute_grad_v2."""
    return token_unpermute_grad_v2(grad, sorted_indices, rows.shape[0], rows.dtype, probs, rows=rows)


def _chosen(routing_map: Tensor, count: int) -> Tensor:
    """Where a [experts, tokens] map is set, flat and in order: the first `count` places."""
    return routing_map.flatten().to(torch.int8).sort(descending=True, stable=True).indices[:count]


def _padded_places(sorted_tokens: Tensor, tokens: int, experts: int) -> Tensor:
    """The flat places in [experts, tokens] of each expert's tokens, `capacity` of them for each expert."""
    by_expert = sorted_tokens.reshape(experts, -1).long()
    return (torch.arange(experts, device=by_expert.device).unsqueeze(1) * tokens + by_expert).flatten()


@kernel("npu_moe_token_permute_with_routing_map")
def permute_with_routing_map(
    tokens: Tensor, routing_map: Tensor, *, probs: Tensor | None = None, num_out_tokens: int | None = None,
    drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """(rows by expert, their probabilities, indices) for a [tokens, experts] map of booleans.

    With drop_and_pad every expert takes the same number of rows, and the indices are the tokens' numbers.
    """
    number, experts = routing_map.shape
    unit = experts if drop_and_pad else number
    count = (number if num_out_tokens is None else num_out_tokens) // unit * unit
    if drop_and_pad:
        ranked = routing_map.T.to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
        token = ranked[:, : count // experts].flatten()
        places, indices = _padded_places(token, number, experts), token
    else:
        places = _chosen(routing_map.T, count)
        token = places % number
        indices = token.sort(stable=True).indices
    picked = None if probs is None else probs.T.flatten()[places]
    return tokens[token], picked, indices.to(torch.int32)


@kernel("npu_moe_token_permute_with_routing_map_grad")
def permute_with_routing_map_grad(
    grad: Tensor, probs_grad: Tensor | None, indices: Tensor, routing_map: Tensor, experts_num: int, tokens_num: int,
    drop_and_pad: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of tokens and probabilities."""
    rows = wide(grad)
    if drop_and_pad:
        dtokens = rows.new_zeros(tokens_num, rows.shape[1]).index_add(0, indices.long(), rows)
        places = _padded_places(indices, tokens_num, experts_num)
    else:
        dtokens = rows[indices.long()].reshape(tokens_num, -1, rows.shape[1]).sum(1)
        places = _chosen(routing_map.T, rows.shape[0])
    if probs_grad is None:
        return dtokens.to(grad.dtype), None
    dprobs = probs_grad.new_zeros(experts_num * tokens_num).scatter(0, places, probs_grad)
    return dtokens.to(grad.dtype), dprobs.reshape(experts_num, tokens_num).T.contiguous()


def _unpermuted_by_map(
    rows: Tensor, indices: Tensor, shape: list[int], probs: Tensor | None, routing_map: Tensor | None, padded: bool
) -> tuple[Tensor, Tensor | None]:
    """The tokens, and the probabilities in the order of the rows (padded) or of the tokens."""
    if padded:
        picked = None
        if probs is not None:
            picked = probs.T.flatten()[_padded_places(indices, probs.shape[0], probs.shape[1])]
            rows = rows * picked.unsqueeze(-1)
        return rows.new_zeros(shape).index_add(0, indices.long(), rows), picked
    copies = rows[indices.long()].reshape(shape[0], -1, rows.shape[1])
    if probs is None or routing_map is None:
        return copies.sum(1), None
    picked = probs.flatten()[_chosen(routing_map, indices.numel())]
    return (copies * picked.reshape(shape[0], -1, 1)).sum(1), picked


@kernel("_npu_moe_token_unpermute_with_routing_map")
def unpermute_with_routing_map(
    rows: Tensor, indices: Tensor, restore_shape: list[int], *, probs: Tensor | None = None,
    routing_map: Tensor | None = None, drop_and_pad: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """(tokens, order of the indices, the indices sorted, probabilities of the rows)."""
    weights = None if probs is None else wide(probs)
    y, picked = _unpermuted_by_map(wide(rows), indices, restore_shape, weights, routing_map, drop_and_pad)
    ranked = indices.sort(stable=True)
    picked = None if picked is None or probs is None else picked.to(probs.dtype)
    return y.to(rows.dtype), ranked.indices.to(indices.dtype), ranked.values, picked


@kernel("npu_moe_token_unpermute_with_routing_map")
def unpermute_with_routing_map_alone(
    rows: Tensor, indices: Tensor, restore_shape: list[int], *, probs: Tensor | None = None,
    routing_map: Tensor | None = None, drop_and_pad: bool = False,
) -> Tensor:  # fmt: skip
    """The tokens alone, in inference mode."""
    return unpermute_with_routing_map(
        rows, indices, restore_shape, probs=probs, routing_map=routing_map, drop_and_pad=drop_and_pad
    )[0]


@kernel("npu_moe_token_unpermute_with_routing_map_grad")
def unpermute_with_routing_map_grad(
    grad: Tensor, out_index: Tensor, token_id: Tensor, routing_map: Tensor | None, rows: Tensor | None,
    probs: Tensor | None, drop_and_pad: bool, restore_shape: list[int],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of rows and probabilities; without drop_and_pad out_index is the sorted indices themselves."""
    indices = token_id.scatter(0, out_index.long(), token_id) if drop_and_pad else out_index
    values = grad.new_zeros(indices.numel(), grad.shape[1]) if rows is None else rows

    def forward(x: Tensor, p: Tensor | None = None) -> Tensor:
        return _unpermuted_by_map(x, indices, restore_shape, p, routing_map, drop_and_pad)[0]

    inputs = [wide(values)] if probs is None else [wide(values), wide(probs)]
    grads = [g.to(grad.dtype) for g in gradients(forward, inputs, wide(grad))]
    return grads[0], grads[1] if len(grads) > 1 else None
