"""The losses of reinforcement learning (GRPO and its variants), computed on answers of the model itself.

Everything here is a pure function of [answers, tokens] tensors. `mask` is 1 for tokens that count. `old` has the
log-probabilities before the first update from these answers, and `sampled` those with which the rollout engine sampled
the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.models.attention import for_attention

_LARGE = 20.0  # differences of log-probabilities are limited to this before exp, which cannot overflow then
BY_ANSWERS = ("grpo", "sapo", "bnpo", "dr_grpo", "real")  # their loss is a mean over answers instead of tokens
_BLOCK = 128
_UNSAFE = 0.8, 1.0  # the range of weights for tokens that fipo does not trust
# the keys of a batch besides those of the model's rows
OF_ANSWERS = ("layout", "mask", "advantages", "sampled", "old", "reference", "teacher", "learns")


def ratios(logprobs: Tensor, old: Tensor, mask: Tensor, level: str) -> Tensor:
    """Return each token's probability relative to when it was sampled, or the geometric mean of each answer.

    >>> ratios(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -2.0]]), torch.ones(1, 2), "token")
    tensor([[1., 1.]])
    """
    change = logprobs - old
    if level != "token":
        whole = _row_mean(change, mask)[:, None].expand_as(change)
        change = whole if level == "sequence" else whole.detach() + logprobs - logprobs.detach()
    return change.exp()


def policy_loss(ratio: Tensor, logprobs: Tensor, advantages: Tensor, options: GrpoOptions) -> Tensor:
    """Return the loss of each token, which makes tokens with a positive advantage likelier, within limits.

    `advantages` has the shape [answers, 1], or [answers, tokens] if each token has its own.
    """
    if options.loss_type == "cispo":
        return -ratio.clamp(max=_upper(options)).detach() * advantages * logprobs
    if options.loss_type == "real":
        return torch.zeros_like(logprobs)  # the loss is per answer, not per token
    if options.loss_type == "sapo":
        good, bad = (torch.sigmoid(tau * (ratio - 1)) * (4 / tau) for tau in (options.tau_pos, options.tau_neg))
        return -torch.where(advantages > 0, good, bad) * advantages
    clipped = ratio.clamp(1 - options.epsilon, 1 + _upper(options))
    free = ratio if options.delta is None else ratio.clamp(max=options.delta)
    return -torch.min(free * advantages, clipped * advantages)


def influence(change: Tensor, ratio: Tensor, advantages: Tensor, options: GrpoOptions) -> Tensor:
    """Return the weight of each token, given how the probabilities of later tokens changed (FIPO, arXiv 2603.19835, as
    in ms-swift).
    """
    if options.delta is not None:
        change = change * (ratio <= options.delta)
    weights = _decaying_sums(change, 2 ** (-1 / options.fipo_decay_rate)).clamp(max=_LARGE).exp()
    if options.fipo_clip_range:
        lowest = 1.0 if options.fipo_clip_high_only else 1 - options.fipo_clip_range
        weights = weights.clamp(lowest, 1 + options.fipo_clip_range)
    unsafe = (advantages < 0) & (ratio > options.fipo_safety_threshold)
    return torch.where(unsafe, weights.clamp(*_UNSAFE), weights)


def _decaying_sums(values: Tensor, decay: float) -> Tensor:
    """Return for each position the sum of it and the values after it, which decay with their distance. Columns are
    computed in blocks.
    """
    sums, after = torch.empty_like(values), torch.zeros_like(values[:, :1])
    for start in reversed(range(0, values.shape[1], _BLOCK)):
        block = values[:, start : start + _BLOCK]
        places = torch.arange(block.shape[1], device=values.device)
        ahead = places[None] - places[:, None]
        factors = torch.where(ahead >= 0, decay ** ahead.clamp(min=0).to(values.dtype), 0)
        rest = after * decay ** (block.shape[1] - places).to(values.dtype)
        sums[:, start : start + _BLOCK] = block @ factors.T + rest
        after = sums[:, start : start + 1]
    return sums


def group_loss(change: Tensor, mask: Tensor, advantages: Tensor, options: GrpoOptions) -> Tensor:
    """Return the mean loss over groups, which makes good answers of a group likelier and bad ones less likely (REAL,
    arXiv 2602.05630, as in ms-swift). Answers without tokens that count are ignored, as are groups with only good or
    only bad answers.
    """
    scores = (_row_mean(change, mask) / options.real_tau).view(-1, options.num_generations)
    counts = mask.any(1).view_as(scores)
    good = (advantages > 0).view_as(scores) & counts
    bad = (advantages <= 0).view_as(scores) & counts
    nothing = torch.zeros_like(scores[:, :1])
    parts = [
        torch.cat([sign * scores.masked_fill(~chosen, sign * -torch.inf), nothing], 1).logsumexp(1)
        for sign, chosen in ((-1, good), (1, bad))
    ]
    return ((parts[0] + parts[1]) * (good.any(1) & bad.any(1))).mean()


def _upper(options: GrpoOptions) -> float:
    return options.epsilon if options.epsilon_high is None else options.epsilon_high


def divergence(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Estimate the KL divergence from the reference. This estimate is never negative (Schulman's k3).

    >>> divergence(torch.tensor([0.0]), torch.tensor([0.0]))
    tensor([0.])
    """
    change = (reference - logprobs).clamp(-_LARGE, _LARGE)
    return change.exp() - change - 1


def correction(old: Tensor, sampled: Tensor, mask: Tensor, options: GrpoOptions) -> Tensor:
    """Return the importance weight of each token: its probability in training relative to the rollout engine's."""
    change = (old - sampled).clamp(-_LARGE, _LARGE)
    weights, most = change.exp(), options.importance_threshold
    if options.importance_correction == "token_truncate":
        return weights.clamp(max=most)
    if options.importance_correction == "token_mask":
        return weights * (weights <= most)
    whole = _row_mean(change, mask)[:, None].exp()
    if options.importance_correction == "sequence_truncate":
        return whole.clamp(max=most).expand_as(weights)
    return weights * (whole <= most)


def mean_loss(losses: Tensor, mask: Tensor, options: GrpoOptions) -> Tensor:
    """Return the mean of the tokens' losses, or zero if the batch has no token that counts."""
    losses = losses * mask
    if options.loss_type in ("grpo", "sapo"):
        return (losses.sum(1) / mask.sum(1).clamp(min=1)).mean()
    if options.loss_type == "dr_grpo":
        return losses.sum() / (len(losses) * options.max_completion_length)
    return losses.sum() / mask.sum().clamp(min=1)


def weight(batch: Mapping[str, Any], options: GrpoOptions) -> int:
    """Return the number of items in that mean, which weights it among batches and ranks."""
    return len(batch["mask"]) if options.loss_type in BY_ANSWERS else int(batch["mask"].sum())


def grpo_loss(model: nn.Module, batch: dict[str, Any], options: GrpoOptions) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a batch of answers, and metrics that show whether training is stable."""
    logprobs, entropy = log_probabilities(model, batch, options.temperature)
    return loss_of(logprobs, entropy, batch, options)


def log_probabilities(model: nn.Module, batch: Mapping[str, Any], temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each token, and the entropy of the distribution that it was sampled from."""
    inputs = {name: value for name, value in batch.items() if name not in OF_ANSWERS}
    logprobs, entropy = model(**for_attention(inputs), temperature=temperature)
    return logprobs[batch["layout"]], entropy[batch["layout"]]


def loss_of(
    logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Any], options: GrpoOptions
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the same, given the model's log-probabilities."""
    mask, advantages, sampled = batch["mask"], batch["advantages"], batch["sampled"]
    old = batch.get("old", logprobs.detach())
    if options.off_policy_mask is not None:
        fell = _row_mean(sampled - logprobs.detach(), mask) > options.off_policy_mask
        mask = mask * ~(fell & (advantages < 0))[:, None]
    ratio = ratios(logprobs, old, mask, options.importance_sampling_level)
    token_advantages = advantages[:, None]
    figures = {"entropy": _mean(entropy, mask)}
    if "teacher" in batch:  # as in ms-swift
        token_advantages = token_advantages + options.teacher_kl_coef * (batch["teacher"] - old)
        figures["teacher_kl"] = _mean(divergence(old, batch["teacher"]), mask)
    losses = policy_loss(ratio, logprobs, token_advantages, options)
    figures |= _clipped(ratio.detach(), token_advantages, mask, options)
    if options.loss_type == "fipo":
        weights = influence((logprobs.detach() - old) * mask, ratio.detach(), token_advantages, options)
        losses, figures["fipo/influence_weight"] = losses * weights, _mean(weights, mask)
    if "learns" in batch:
        losses = losses * batch["learns"]
    if "reference" in batch:
        distance = divergence(logprobs, batch["reference"])
        figures = {"kl": _mean(distance, mask), **figures}
        if not options.kl_in_reward:
            losses = losses + options.beta * distance * (ratio if options.use_bias_correction_kl else 1)
    if options.importance_correction:
        losses = losses * correction(old, sampled, mask, options)
    figures["sampling/logp_difference"] = _mean((old - sampled).abs(), mask)
    figures["sampling/importance_ratio"] = _mean((old - sampled).exp(), mask)
    loss = mean_loss(losses, mask, options)
    if options.loss_type == "real":
        loss = loss + group_loss(logprobs - old, mask, advantages, options)
    return loss, {name: figure.detach().float() for name, figure in figures.items()}


def _clipped(ratio: Tensor, advantages: Tensor, mask: Tensor, options: GrpoOptions) -> dict[str, Tensor]:
    """Return the shares of tokens whose gradient was clipped."""
    bad, good = advantages < 0, advantages > 0
    if options.loss_type in ("sapo", "real"):
        return {}
    if options.loss_type == "cispo":
        return {"clip_ratio/high": _mean(((ratio > _upper(options)) & good).float(), mask)}
    low, high = (ratio < 1 - options.epsilon) & bad, (ratio > 1 + _upper(options)) & good
    return {"clip_ratio/low": _mean(low.float(), mask), "clip_ratio/high": _mean(high.float(), mask)}


def _row_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values.detach() * mask).sum() / mask.sum().clamp(min=1)
