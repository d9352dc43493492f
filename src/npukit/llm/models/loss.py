"""Cross-entropy of a language model without its logits: they are made, used and dropped a few rows at a time.

The logits of 8,192 tokens over 152,000 words are 5 GB in fp32, and their gradient as much again. Here both the loss
and the gradient of a chunk are computed while its logits are there, in the forward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

IGNORED = -100
CHUNK = 1024


def shifted(labels: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """Labels moved so that each token is to foretell the next one; the last of a row foretells nothing.

    >>> shifted(torch.tensor([[5, 6, 7]]))
    tensor([[   6,    7, -100]])
    """
    following = torch.full_like(labels, IGNORED)
    following[:, :-1] = labels[:, 1:]
    if cu_seqlens is not None:
        following[:, cu_seqlens[1:].long() - 1] = IGNORED
    return following


def cross_entropy_of(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int | None = None) -> Tensor:
    """The mean cross-entropy of `hidden @ weight.T` against labels; -100 does not count.

    >>> cross_entropy_of(torch.zeros(2, 4), torch.randn(10, 4), torch.tensor([3, -100]))
    tensor(2.3026)
    """
    return _ChunkedCrossEntropy.apply(hidden, weight, labels, chunk or CHUNK)  # type: ignore[no-any-return, no-untyped-call]


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> Tensor:
        dtype = _compute_type(hidden)
        weights = weight.detach().to(dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            some = hidden[rows].detach().to(dtype)
            loss, gradient = _loss_and_gradient(some @ weights.T, labels[rows])
            total += loss
            if hidden_gradient is not None:
                hidden_gradient[rows] = gradient @ weights
            if weight_gradient is not None:
                weight_gradient += gradient.T @ some
        ctx.count = (labels != IGNORED).sum().clamp(min=1)
        ctx.gradients = hidden_gradient, weight_gradient
        ctx.weight_dtype = weight.dtype
        return total / ctx.count

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        # Only here, with the loss scale in the factor, is it divided: in fp16 the quotients alone would be lost.
        hidden, weight = (None if part is None else part.mul_(factor / ctx.count) for part in ctx.gradients)
        return hidden, None if weight is None else weight.to(ctx.weight_dtype), None, None


def _loss_and_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the losses, and its gradient with respect to the logits."""
    counts = labels != IGNORED
    targets = labels.where(counts, 0).unsqueeze(1)
    values = logits.float()
    normalizer = values.logsumexp(1, keepdim=True)
    loss = ((normalizer - values.gather(1, targets)).squeeze(1) * counts).sum()
    probability = (values - normalizer).exp()
    words = torch.arange(logits.shape[1], device=logits.device)
    return loss, ((probability - (words == targets).float()) * counts.unsqueeze(1)).to(logits.dtype)


def _compute_type(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def give_loss(head: nn.Module) -> None:
    """Let the output layer take labels, too: `head(hidden, labels)` is then the loss.

    It stays a call of that module, so that whatever gathers its weight for a call (FSDP, ZeRO-3) still does.
    """
    logits = head.forward

    def forward(hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            return logits(hidden)  # type: ignore[no-any-return]
        return cross_entropy_of(hidden.flatten(0, -2), head.weight, labels.flatten())  # type: ignore[arg-type]

    head.forward = forward
