"""Cross-entropy of a language model without its logits: they are made, used and dropped a few rows at a time.

The logits of 8,192 tokens over 152,000 words are 5 GB in fp32, and their gradient as much again. Here both the loss
and the gradient of a chunk are computed while its logits are there, in the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from npukit.launch.abilities import abilities

IGNORED = -100
# Elements of the logits that are there at once, where fp32 copies are made of them.
CHUNK = 2**27
COMPILED_CHUNK = 2**28  # where the compiler makes hardly any
ALIGNED = 64


def shifted(labels: Tensor) -> Tensor:
    """Labels moved so that each token is to foretell the next one. In packed rows the first label is -100 already,
    so that no row's last token has anything to foretell.

    >>> shifted(torch.tensor([[5, 6, 7]]))
    tensor([[   6,    7, -100]])
    """
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], dim=1)


def cross_entropy_of(hidden: Tensor, weight: Tensor, labels: Tensor, label_at: Tensor | None = None) -> Tensor:
    """The mean cross-entropy of `hidden @ weight.T` against labels; -100 does not count.

    `label_at` are the places of the labels that count. Where it is given, no logits of others are made.

    >>> cross_entropy_of(torch.zeros(2, 4), torch.randn(10, 4), torch.tensor([3, -100]))
    tensor(2.3026)
    """
    if label_at is not None:
        hidden, labels = hidden.index_select(0, label_at), labels.index_select(0, label_at)
    return _ChunkedCrossEntropy.apply(hidden, weight, labels)  # type: ignore[no-any-return, no-untyped-call]


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        compute = loss_and_gradient
        if hidden.is_cuda:
            from npukit.llm.models.loss_kernel import loss_and_gradient as compute
        weights, words, chunk = _head(hidden, weight)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        weight_gradient = None
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            some = hidden[rows].detach().to(weights.dtype)
            loss, gradient = compute(some @ weights.T, labels[rows], words)
            total += loss
            if hidden_gradient is not None:
                hidden_gradient[rows] = gradient @ weights
            if wants_weight:
                of_chunk = (gradient.T @ some).float()
                weight_gradient = of_chunk if weight_gradient is None else weight_gradient.add_(of_chunk)
        ctx.count = (labels != IGNORED).sum().clamp(min=1)
        ctx.gradients = hidden_gradient, None if weight_gradient is None else weight_gradient[:words]
        ctx.weight_dtype = weight.dtype
        mean: Tensor = total / ctx.count
        return mean

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        # Only here, with the loss scale in the factor, is it divided: in fp16 the quotients alone would be lost.
        hidden, weight = (None if part is None else part.mul_(factor / ctx.count) for part in ctx.gradients)
        return hidden, None if weight is None else weight.to(ctx.weight_dtype), None


def _head(hidden: Tensor, weight: Tensor) -> tuple[Tensor, int, int]:
    """The output layer's weight as it is computed with, how many words it has, and of how many rows logits are made at
    once.
    """
    elements = CHUNK
    if hidden.is_cuda:
        elements = torch.cuda.get_device_properties(hidden.device).total_memory // 64  # in bf16, a 32nd of it
    words = weight.shape[0]
    # Matrix units are at their best with such sizes: GPT-2's 50,257 words take a third longer than 50,304.
    missing = -words % ALIGNED
    weights = weight.detach().to(_compute_type(hidden))
    return F.pad(weights, (0, 0, 0, missing)) if missing else weights, words, _chunk(hidden.shape[0], words, elements)


def _chunk(rows: int, words: int, elements: int) -> int:
    """How many rows at a time: all chunks alike."""
    chunks = max(-(-rows * words // elements), 1)
    return max(-(-rows // chunks), 1)


def loss_and_gradient(logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """The sum of the losses, and its gradient with respect to the logits; columns after `words` are not there."""
    counts = labels != IGNORED
    targets = labels.where(counts, 0).unsqueeze(1)
    place = torch.arange(logits.shape[1], device=logits.device)
    logarithms = logits.float().masked_fill(place >= words, -torch.inf).log_softmax(1)
    loss = -(logarithms.gather(1, targets).squeeze(1) * counts).sum()
    return loss, ((logarithms.exp() - (place == targets).float()) * counts.unsqueeze(1)).to(logits.dtype)


Weighting = Callable[[Tensor, Tensor], Tensor]  # of logits and the labels' log-probabilities, both without gradient


Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Reference:
    """What another model makes of the same rows, and how much it counts to be far from it."""

    head: Head
    hidden: Tensor
    weight: float


def log_probabilities(
    head: Head,
    hidden: Tensor,
    labels: Tensor,
    weighting: Weighting | None = None,
    reference: Reference | None = None,
) -> Tensor:
    """The log-probability of each label, 0 where it is -100. Logits are made a chunk at a time, and again going back.

    With a reference each is lowered by how far the model's opinion is from that one's.

    >>> log_probabilities(nn.Linear(4, 10, bias=False), torch.zeros(1, 2, 4), torch.tensor([[3, -100]]))
    tensor([[-2.3026,  0.0000]])
    """
    flat, targets = hidden.flatten(0, -2), labels.flatten()
    chunk = _chunk(flat.shape[0], int(getattr(head, "out_features", 2**17)), CHUNK)
    pieces = list(zip(torch.split(flat, chunk), torch.split(targets, chunk), strict=True))
    logprobs = [checkpoint(_of_chunk, head, some, wanted, weighting, use_reentrant=False) for some, wanted in pieces]
    if reference:
        theirs = torch.split(reference.hidden.flatten(0, -2), chunk)
        for number, (some, wanted) in enumerate(pieces):
            far = checkpoint(_distance, head, some, reference.head, theirs[number], use_reentrant=False)
            logprobs[number] = logprobs[number] - reference.weight * far * (wanted != IGNORED)
    return torch.cat(logprobs).view_as(labels)


def sampled_log_probabilities(head: Head, hidden: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The log-probability of each label after a temperature, and the entropy of the prediction, which has no gradient.

    >>> sampled_log_probabilities(nn.Linear(4, 10, bias=False), torch.zeros(1, 4), torch.tensor([3]), 1.0)
    (tensor([-2.3026]), tensor([2.3026]))
    """
    if getattr(head, "takes_labels", False) and not head.weight.requires_grad:  # type: ignore[attr-defined]
        return head(hidden, labels, temperature=temperature)  # type: ignore[call-arg, return-value]
    compiles = abilities(hidden.device).compiles
    chunk = _chunk(hidden.shape[0], int(getattr(head, "out_features", 2**17)), COMPILED_CHUNK if compiles else CHUNK)
    compute = _compiled_likelihood if compiles else _likelihood

    def sampled(some: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return compute(head(some), wanted, temperature)

    pieces = zip(torch.split(hidden, chunk), torch.split(labels, chunk), strict=True)
    chunks = [checkpoint(sampled, some, wanted, use_reentrant=False) for some, wanted in pieces]
    logprobs, entropies = zip(*chunks, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _ChunkedLikelihood(torch.autograd.Function):
    """The same for an output layer that is not trained. The gradient of a log-probability does not depend on what is
    made of it, but for a factor: it is computed while the logits are there, and they are not made again going back.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        compute = likelihood_and_gradient
        if hidden.is_cuda:
            from npukit.llm.models.loss_kernel import likelihood_and_gradient as compute
        weights, words, chunk = _head(hidden, weight)
        logprobs, entropies = (hidden.new_empty(hidden.shape[0], dtype=torch.float32) for _ in range(2))
        wants_gradient = ctx.needs_input_grad[0]
        ctx.gradient = torch.empty_like(hidden) if wants_gradient else None
        for start in range(0, hidden.shape[0], chunk):
            rows = slice(start, start + chunk)
            logits = hidden[rows].detach().to(weights.dtype) @ weights.T
            computed = compute(logits, labels[rows], words, temperature, wants_gradient)
            logprobs[rows], entropies[rows], gradient = computed
            if gradient is not None:
                ctx.gradient[rows] = gradient @ weights
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, factors: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.gradient.mul_(factors[:, None]), None, None, None


def likelihood_and_gradient(
    logits: Tensor, labels: Tensor, words: int, temperature: float, wants_gradient: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The log-probability of each label, the entropy, and the gradient of the former with respect to the logits;
    columns after `words` are not there.
    """
    logarithms = (logits[:, :words].float() / temperature).log_softmax(-1)
    shares = logarithms.exp()
    labels = labels.clamp(min=0).unsqueeze(1)
    logprobs, entropies = logarithms.gather(1, labels).squeeze(1), -(shares * logarithms).sum(-1)
    if not wants_gradient:
        return logprobs, entropies, None
    gradient = shares.neg_().scatter_add_(1, labels, torch.ones_like(logprobs)[:, None]).div_(temperature)
    return logprobs, entropies, F.pad(gradient, (0, logits.shape[1] - words)).to(logits.dtype)


def _likelihood(logits: Tensor, labels: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logarithms = (logits.float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(logarithms.exp() * logarithms).sum(-1)
    return -F.nll_loss(logarithms, labels, reduction="none"), entropy


_compiled_likelihood = torch.compile(_likelihood, dynamic=True)  # nothing is as large as the logits but their gradient


def _distance(head: Head, hidden: Tensor, their_head: Head, their_hidden: Tensor) -> Tensor:
    """Of each position, the divergence of the model's probabilities from the reference's."""
    with torch.no_grad():
        theirs = their_head(their_hidden).float().log_softmax(-1)
    ours = head(hidden).float().log_softmax(-1)
    return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(-1)


def _of_chunk(head: Head, hidden: Tensor, labels: Tensor, weighting: Weighting | None) -> Tensor:
    counts = labels != IGNORED
    logits = head(hidden).float()
    logprobs: Tensor = logits.log_softmax(-1).gather(1, labels.where(counts, 0).unsqueeze(1)).squeeze(1) * counts
    return logprobs if weighting is None else logprobs * weighting(logits.detach(), logprobs.detach())


def by_likelihood(_logits: Tensor, logprobs: Tensor) -> Tensor:
    """DFT: a token counts as much as the model believes in it (https://arxiv.org/abs/2508.05629)."""
    return logprobs.exp()


def by_uncertainty(logits: Tensor, _found: Tensor, power: float) -> Tensor:
    """EAFT, as LLaMA-Factory has it: by the entropy of the twenty likeliest tokens, of which 3 is about the most."""
    logarithms = logits.topk(min(20, logits.shape[-1]), dim=-1).values.log_softmax(-1)
    entropy = -(logarithms.exp() * logarithms).sum(-1)
    return (entropy / 3) ** power


def _compute_type(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def give_loss(head: nn.Module) -> None:
    """Let the output layer take labels, too: `head(hidden, labels, label_at)` is then the loss, and with a temperature
    the log-probabilities of labels and the entropies.

    It stays a call of that module, so that whatever gathers its weight for a call (FSDP, ZeRO-3) still does, and a
    copy of it that is trained instead computes with its own weight.
    """

    def forward(
        self: Any,
        hidden: Tensor,
        labels: Tensor | None = None,
        label_at: Tensor | None = None,
        temperature: float | None = None,
    ) -> Any:
        if labels is None:
            return type(self).forward(self, hidden)
        if temperature is not None:
            return _ChunkedLikelihood.apply(hidden, self.weight, labels, temperature)  # type: ignore[no-untyped-call]
        return cross_entropy_of(hidden.flatten(0, -2), self.weight, labels.flatten(), label_at)

    head.forward = MethodType(forward, head)
    head.takes_labels = True  # type: ignore[assignment]
