"""Mixtures of experts: which experts a token goes to, and its rows there and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import gradients, quantized_by, row_quantized, wide
from npukit.simulate.ops.registry import kernel


def _top(scores: Tensor, k: int) -> Tensor:
    """The places of the k largest; of equal ones the first, as CANN's stable sort has it."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :k]


@kernel("npu_moe_gating_top_k_softmax")
def gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """(probability, expert, row) of each token's k best; a finished row's expert is the number of experts.

    Rows are numbered down the columns: token i's j-th copy is row j * tokens + i.
    """
    y, experts, _ = gating_top_k_softmax_v2(x, k=k, finished=finished)
    tokens = x.shape[:-1].numel()
    rows = torch.arange(tokens * k, dtype=torch.int32, device=x.device).reshape(k, tokens).T
    return y, experts, rows.reshape(y.shape).contiguous()


@kernel("npu_moe_gating_top_k_softmax_v2")
def gating_top_k_softmax_v2(
    x: Tensor, *, k: int = 1, finished: Tensor | None = None, renorm: int | None = 0,
    output_softmax: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The k best of softmax(x); with renorm 1 the softmax is taken of the k best logits instead."""
    softmax = x.float().softmax(-1)
    if renorm == 1:
        experts = _top(x, k)
        y = x.float().gather(-1, experts).softmax(-1)
    else:
        experts = _top(softmax, k)
        y = softmax.gather(-1, experts)
    if finished is not None:
        experts = torch.where(finished.bool().unsqueeze(-1), x.shape[-1], experts)
    whole = softmax if output_softmax and renorm == 0 else softmax.new_empty(0)
    return y.to(x.dtype), experts.to(torch.int32), whole


def _normalized(x: Tensor, norm_type: int) -> Tensor:
    return x.softmax(-1) if norm_type == 0 else x.sigmoid() if norm_type == 1 else F.softplus(x).sqrt()


def _weighted(picked: Tensor, renorm: int, norm_type: int, scaling: float, eps: float) -> Tensor:
    if norm_type != 0 or renorm == 1:
        picked = picked / (picked.sum(-1, keepdim=True) + eps)
    return picked * scaling


@kernel("npu_moe_gating_top_k")
def gating_top_k(
    x: Tensor, k: int, *, bias: Tensor | None = None, input_ids: Tensor | None = None, tid2eid: Tensor | None = None,
    k_group: int = 1, group_count: int = 1, group_select_mode: int = 0, renorm: int = 0, norm_type: int = 0,
    out_flag: bool = False, routed_scaling_factor: float = 1.0, eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(weight, expert, all scores): softmax (0) or sigmoid (1) scores; experts of the k_group best groups compete.

    The bias chooses but does not weigh. A group counts by its best expert (mode 0) or its best two together (1).
    Sigmoid weights are divided by their sum. The scores are returned in any case: the backward op reads them.
    """
    scores = _normalized(x.float(), norm_type)
    if input_ids is not None and tid2eid is not None:
        experts = tid2eid[input_ids.long()].long()
    else:
        contest = scores if bias is None else scores + bias.float()
        if group_count > 1:
            grouped = contest.unflatten(-1, (group_count, -1))
            strength = grouped.amax(-1) if group_select_mode == 0 else grouped.topk(2, -1).values.sum(-1)
            chosen = torch.zeros_like(strength, dtype=torch.bool).scatter(-1, _top(strength, k_group), True)
            contest = torch.where(chosen.unsqueeze(-1), grouped, -torch.inf).flatten(-2)
        experts = _top(contest, k)
    y = _weighted(scores.gather(-1, experts), renorm, norm_type, routed_scaling_factor, eps)
    return y.to(x.dtype), experts.to(torch.int32), scores


@kernel("npu_moe_gating_top_k_backward")
def gating_top_k_backward(
    x_norm: Tensor, grad_y: Tensor, experts: Tensor, *, renorm: int = 0, norm_type: int = 0,
    routed_scaling_factor: float = 1.0, eps: float = 1e-20,
) -> Tensor:  # fmt: skip
    """Gradient of the logits, from the scores that the forward op kept."""

    def weights(scores: Tensor) -> Tensor:
        return _weighted(scores.gather(-1, experts.long()), renorm, norm_type, routed_scaling_factor, eps)

    (grad,) = gradients(weights, [x_norm], wide(grad_y))
    if norm_type == 0:
        grad = x_norm * (grad - (grad * x_norm).sum(-1, keepdim=True))
    elif norm_type == 1:
        grad = grad * x_norm * (1 - x_norm)
    else:
        grad = grad * (1 - torch.exp(-x_norm * x_norm)) / (2 * x_norm)
    return grad.to(grad_y.dtype)


@kernel("npu_moe_init_routing")
def init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows sorted by expert, where each copy went, experts sorted); only active_num * k rows are filled."""
    tokens, k = expert_idx.shape
    order = expert_idx.flatten().sort(stable=True)
    source = row_idx.flatten()[order.indices].long()
    went = torch.empty_like(source).scatter(0, source, torch.arange(tokens * k, device=x.device))
    rows = x[source[: min(active_num, tokens) * k] % tokens]
    return rows, went.to(torch.int32), order.values.to(torch.int32)


@kernel("npu_moe_init_routing_v2")
def init_routing_v2(
    x: Tensor, expert_idx: Tensor, *, scale: Tensor | None = None, offset: Tensor | None = None, active_num: int = -1,
    expert_capacity: int = -1, expert_num: int = -1, drop_pad_mode: int = 0, expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False, quant_mode: int = -1, active_expert_range: list[int] | None = None,
    row_idx_type: int = 0, x_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(rows by expert, row numbers, tokens of each expert, row scales) for the experts of a range.

    drop_pad_mode 1 gives every expert the same capacity, dropping what is over. Row numbers say where each copy went
    (-1 nowhere), or where each row came from (row_idx_type 1). quant_mode: -1 none, 0 static, 1 dynamic int8.
    """
    if quant_mode not in (-1, 0, 1):
        raise NotImplementedError(f"The simulated npu_moe_init_routing_v2 lacks quant_mode {quant_mode}: use -1, 0, 1")
    first, last = active_expert_range or (0, expert_num)
    capacity = expert_capacity if drop_pad_mode == 1 else None
    copies, k = expert_idx.numel(), expert_idx.shape[1]
    length = expert_num * expert_capacity if capacity else copies if active_num <= 0 else min(active_num, copies)
    order, expert, place, counts = _routes(expert_idx, first, last, capacity, length)
    rows = x.new_zeros(length + 1, x.shape[1]).index_copy(0, place, x[order // k])[:-1]
    went = torch.full((copies,), -1, device=x.device).scatter(0, order, torch.where(place < length, place, -1))
    numbers = order if row_idx_type == 1 and not capacity else went
    row_scale = x.new_empty(length if quant_mode == -1 else 0, dtype=torch.float32)
    if quant_mode == -1 and scale is not None:
        row_scale = scale.new_zeros(length + 1).scatter(0, place, scale[order // k])[:-1].float()
    elif quant_mode == 0 and scale is not None:
        rows = quantized_by(wide(rows), scale, offset, False, None)
    elif quant_mode == 1:
        owner = torch.zeros(length + 1, dtype=torch.int64, device=x.device).scatter(0, place, expert)[:-1]
        smooth = 1.0 if scale is None else scale if scale.shape[0] == 1 else scale[owner]
        rows, row_scale = row_quantized(wide(rows) * smooth, None)
    rows = rows.unflatten(0, (expert_num, expert_capacity)) if capacity else rows
    number = _token_counts(counts, first, expert_num, 1 if capacity else expert_tokens_num_type)
    return rows, numbers.to(torch.int32), number if expert_tokens_num_flag else number.new_empty(0), row_scale


def _routes(
    expert_idx: Tensor, first: int, last: int, capacity: int | None, length: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copies sorted by expert: (which copy, its expert counted from the first, its row, tokens of each expert).

    Row `length`, one past the end, stands for those that get no row: of other experts, or over the capacity.
    """
    number = last - first
    wanted = torch.where(expert_idx.flatten() < first, torch.iinfo(torch.int32).max, expert_idx.flatten())
    experts, order = wanted.sort(stable=True)
    inside = experts < last
    local = torch.where(inside, experts - first, number).long()
    counts = torch.zeros(number + 1, dtype=torch.int64, device=local.device)
    counts = counts.scatter_add(0, local, torch.ones_like(local))[:-1]
    expert, place = local.clamp(max=number - 1), torch.arange(local.shape[0], device=local.device)
    if capacity:
        rank = place - (counts.cumsum(0) - counts)[expert]
        inside, place = inside & (rank < capacity), experts * capacity + rank
    return order, expert, torch.where(inside & (place < length), place, length), counts


def _token_counts(counts: Tensor, first: int, expert_num: int, kind: int) -> Tensor:
    """Tokens of each expert: as ends (0), sizes (1), or pairs of expert and size, those without tokens left out (2)."""
    if kind != 2:
        return counts.cumsum(0) if kind == 0 else counts
    numbers = torch.arange(counts.shape[0], device=counts.device) + first
    pairs = torch.stack((numbers, counts), 1) * (counts > 0).unsqueeze(1)
    pairs = pairs[(counts == 0).sort(stable=True).indices]
    return F.pad(pairs, (0, 0, 0, expert_num - pairs.shape[0]))


@kernel("npu_moe_compute_expert_tokens")
def compute_expert_tokens(sorted_experts: Tensor, num_expert: int) -> Tensor:
    """For each expert, where its rows end among the sorted ones."""
    experts = torch.arange(num_expert, dtype=sorted_experts.dtype, device=sorted_experts.device)
    return torch.searchsorted(sorted_experts.contiguous(), experts, right=True).to(torch.int32)


@kernel("npu_moe_finalize_routing")
def finalize_routing(
    rows: Tensor, skip1: Tensor | None, skip2: Tensor | None, bias: Tensor | None, scales: Tensor | None,
    places: Tensor, experts: Tensor | None, drop_pad_mode: int | None = 0, k: int | None = 1,
) -> Tensor:  # fmt: skip
    """skip1 + skip2 + sum over a token's copies of scale * (row + its expert's bias).

    Copies are numbered down the columns (modes 0 and 1) or along the rows (2 and 3); place -1 is a dropped copy.
    """
    flat = wide(rows).reshape(-1, rows.shape[-1])
    copies = scales.shape[1] if scales is not None else k or 1
    order = places.reshape(-1, copies) if drop_pad_mode in (2, 3) else places.reshape(copies, -1).T
    picked = torch.where((order >= 0).unsqueeze(-1), flat[order.clamp(min=0).long()], 0.0)
    if bias is not None and experts is not None:
        picked = picked + wide(bias)[experts.reshape(order.shape).long()]
    y = (picked if scales is None else picked * wide(scales).unsqueeze(-1)).sum(1)
    for skip in (skip1, skip2):
        y = y if skip is None else y + wide(skip)
    return y.to(rows.dtype)


@kernel("npu_moe_re_routing")
def re_routing(
    tokens: Tensor, expert_token_num_per_rank: Tensor, *, per_token_scales: Tensor | None = None,
    expert_token_num_type: int = 1, idx_type: int = 0, tokens_dtype: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Rows that came sorted by rank and then expert, sorted by expert and then rank: (rows, scales, source, tokens)."""
    ranks, experts = expert_token_num_per_rank.shape
    ends = expert_token_num_per_rank.flatten().cumsum(0)
    block = torch.searchsorted(ends, torch.arange(tokens.shape[0], device=tokens.device, dtype=ends.dtype), right=True)
    source = (block % experts * ranks + block // experts).sort(stable=True).indices
    if per_token_scales is None:
        scales = tokens.new_empty(tokens.shape[0], dtype=torch.float32)
    else:
        scales = per_token_scales[source]
    total = expert_token_num_per_rank.sum(0)
    total = total.cumsum(0) if expert_token_num_type == 0 else total
    return tokens[source], scales, source.to(torch.int32), total.to(expert_token_num_per_rank.dtype)
