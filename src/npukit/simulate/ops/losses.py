"""Losses that torch_npu fuses, and the backward ops of losses whose forward is torch's own."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import gradients, wide, wide_or_none
from npukit.simulate.ops.dropout_mask import pack, unpack
from npukit.simulate.ops.registry import kernel


def _weights(log_prob: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    """The weight of each class, and of each row by its target; rows whose target is ignored weigh nothing."""
    classes = log_prob.new_ones(log_prob.shape[-1]) if weight is None else wide(weight)
    counted = target != ignore_index
    return classes, classes[torch.where(counted, target, 0)] * counted


def _reduced(x: Tensor, rows: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x
    return (x.sum() / rows.sum() if reduction == "mean" else x.sum()).reshape(1)


def _cross_entropy(
    log_prob: Tensor, target: Tensor, weight: Tensor | None, reduction: str, ignore_index: int, label_smoothing: float
) -> Tensor:
    classes, rows = _weights(log_prob, target, weight, ignore_index)
    counted = target != ignore_index
    picked = log_prob.gather(1, torch.where(counted, target, 0).unsqueeze(1)).squeeze(1)
    smooth = (log_prob * classes).sum(-1) * counted
    loss = -(1 - label_smoothing) * picked * rows - label_smoothing / log_prob.shape[-1] * smooth
    return _reduced(loss, rows, reduction)


@kernel("npu_cross_entropy_loss")
def cross_entropy_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100,
    label_smoothing: float = 0.0, lse_square_scale_for_zloss: float = 0.0, return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(loss, log_prob, zloss, logsumexp): a reduced loss has shape [1]; the last two are empty unless asked for."""
    log_prob = wide(x).log_softmax(-1)
    loss = _cross_entropy(log_prob, target, weight, reduction, ignore_index, label_smoothing)
    lse, zloss = x.new_empty(0), x.new_empty(0)
    if lse_square_scale_for_zloss:
        logsumexp = wide(x).logsumexp(-1)
        lse = logsumexp.to(x.dtype)
        rows = (target != ignore_index).to(logsumexp.dtype)
        penalty = _reduced(lse_square_scale_for_zloss * logsumexp.pow(2) * rows, rows, reduction)
        loss = loss + penalty
        zloss = penalty.to(x.dtype) if return_zloss else zloss
    return loss.to(x.dtype), log_prob.to(x.dtype), zloss, lse


@kernel("npu_cross_entropy_loss_backward")
def cross_entropy_loss_backward(
    grad_loss: Tensor, log_prob: Tensor, target: Tensor, weight: Tensor | None = None,
    grad_zloss: Tensor | None = None, lse_for_zloss: Tensor | None = None, reduction: str = "mean",
    ignore_index: int = -100, label_smoothing: float = 0.0, lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:  # fmt: skip
    """Gradient of the logits from the kept log-probabilities: the logits themselves are not passed on."""
    logs = wide(log_prob)
    (dlogs,) = gradients(
        lambda x: _cross_entropy(x, target, weight, reduction, ignore_index, label_smoothing), [logs], wide(grad_loss)
    )
    grad = dlogs - logs.exp() * dlogs.sum(-1, keepdim=True)
    if lse_square_scale_for_zloss and lse_for_zloss is not None:
        rows = (target != ignore_index).to(logs.dtype)
        upstream = wide(grad_loss) if grad_zloss is None else wide(grad_loss) + wide(grad_zloss)
        scale = 2 * lse_square_scale_for_zloss * wide(lse_for_zloss) * rows * upstream
        grad = grad + logs.exp() * (scale / rows.sum() if reduction == "mean" else scale).unsqueeze(-1)
    return grad.to(log_prob.dtype)


@kernel("npu_softmax_cross_entropy_with_logits")
def softmax_cross_entropy(x: Tensor, labels: Tensor) -> Tensor:
    """-sum(labels * log_softmax(x)) by row; the labels are probabilities, not class numbers."""
    return -(wide(labels) * wide(x).log_softmax(-1)).sum(-1).to(x.dtype)


@kernel("npu_softmax_cross_entropy_with_logits_backward")
def softmax_cross_entropy_backward(grad: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """(softmax(x) - labels) * grad, as if each row of labels added up to one, whether it does or not."""
    return ((wide(x).softmax(-1) - wide(labels)) * wide(grad).unsqueeze(-1)).to(x.dtype)


def _averaged(grad: Tensor, like: Tensor, reduction: int) -> Tensor:
    """The gradient that reaches each element; reduction is 0 none, 1 mean, 2 sum."""
    return wide(grad) / like.numel() if reduction == 1 else wide(grad)


@kernel("l1_loss_backward")
def l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """sign(x - target) * grad, broadcast; the caller negates it for the target."""
    sign = torch.sign(wide(x) - wide(target))
    dtype = torch.promote_types(grad.dtype, torch.promote_types(x.dtype, target.dtype))
    return (sign * _averaged(grad, sign, reduction)).to(dtype)


@kernel("kl_div_backward")
def kl_div_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """Gradient of the log-probabilities: -target, where the target is positive."""
    truth = wide(target).exp() if log_target else wide(target).clamp(min=0)
    return (-truth * _averaged(grad, x, reduction)).to(x.dtype)


@kernel("kl_div_target_backward")
def kl_div_target_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
) -> Tensor:
    """Gradient of the target; zero where a target given as a probability is zero."""
    truth, guess = wide(target), wide(x)
    slope = truth.exp() * (truth + 1 - guess) if log_target else torch.where(truth > 0, truth.log() + 1 - guess, 0.0)
    return (slope * _averaged(grad, x, reduction)).to(target.dtype)


@kernel("aten::binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """torch's loss, rounded once: the CPU's kernel would round every step of it to half precision."""
    given = [tensor for tensor in (x, target, weight, pos_weight) if tensor is not None]
    loss = torch.binary_cross_entropy_with_logits(
        wide(x), wide(target), wide_or_none(weight), wide_or_none(pos_weight), reduction
    )
    return loss.to(reduce(torch.promote_types, [tensor.dtype for tensor in given]))


@kernel("npu_binary_cross_entropy_with_logits_backward")
def binary_cross_entropy_with_logits_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    """Gradient of the logits."""

    def loss(logits: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            logits, wide(target), wide_or_none(weight), reduction="none", pos_weight=wide_or_none(pos_weight)
        )

    return gradients(loss, [wide(x)], _averaged(grad, x, reduction).expand(x.shape))[0].to(x.dtype)


@kernel("npu_fused_linear_online_max_sum")
def linear_online_max_sum(
    x: Tensor, weight: Tensor, target: Tensor, vocab_start_index: int, vocab_end_index: int, return_logits: bool = False
) -> tuple[Tensor | None, ...]:
    """Before the ranks that share a vocabulary meet: (largest logit, sum of exp, target's logit, mask, target, logits).

    Exponents and the target's logit are taken below the largest one. A bit of the mask is set where the target is
    another rank's; there the target is 0 and its logit is 0. The end of the vocabulary belongs to it.
    """
    logits = wide(x) @ wide(weight).T
    top = logits.amax(-1)
    below = logits - top.unsqueeze(1)
    other = (target < vocab_start_index) | (target > vocab_end_index)
    local = torch.where(other, 0, target - vocab_start_index)
    predicted = below.gather(1, local.long().unsqueeze(1)).squeeze(1).masked_fill(other, 0.0)
    mask = pack(other)[: (x.shape[0] + 7) // 8]
    whole = logits.to(x.dtype) if return_logits else None
    return top.float(), below.exp().sum(-1).float(), predicted.float(), mask, local.to(target.dtype), whole


@kernel("npu_fused_cross_entropy_loss_with_max_sum")
def cross_entropy_with_max_sum(
    logits_max: Tensor, sum_exp_logits: Tensor, predicted_logits: Tensor, *, label_smoothing: float | None = 0.0,
    input: Tensor | None = None, weight: Tensor | None = None, vocab_parallel_logits: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(log(sum of exp) - the target's logit, softmax): the numbers are those of all ranks together."""
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, None
    exponents = (wide(vocab_parallel_logits) - logits_max.unsqueeze(1)).exp()
    return loss, (exponents / sum_exp_logits.unsqueeze(1)).float()


@kernel("npu_fused_linear_cross_entropy_loss_with_max_sum_backward")
def linear_cross_entropy_backward(
    grad: Tensor, x: Tensor, weight: Tensor, target_mask: Tensor, masked_target: Tensor, label_smoothing: float = 0.0,
    logits_max: Tensor | None = None, sum_exp_logits: Tensor | None = None, softmax: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of x and weight, from the softmax or from what it is made of."""
    if softmax is None:
        if logits_max is None or sum_exp_logits is None:
            raise ValueError("Pass either softmax, or logits_max and sum_exp_logits.")
        exponents = (wide(x) @ wide(weight).T - logits_max.unsqueeze(1)).exp()
        softmax = exponents / sum_exp_logits.unsqueeze(1)
    mine = ~unpack(target_mask, x.shape[0])
    places = masked_target.long().unsqueeze(1)
    dlogits = softmax.scatter_add(1, places, -mine.to(softmax.dtype).unsqueeze(1)) * grad.float().unsqueeze(1)
    return (dlogits @ wide(weight)).to(x.dtype), (dlogits.T @ wide(x)).to(x.dtype)
