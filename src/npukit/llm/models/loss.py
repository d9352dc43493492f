"""Cross-entropy of a language model without full logits: a few rows are computed, used and dropped at a time.

The logits of 8,192 tokens over 152,000 words are 5 GB in fp32, and so is their gradient. Here both the loss and the
gradient of a chunk are computed in the forward pass while its logits exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from npukit.launch.abilities import abilities

IGNORED = -100
# Elements of the logits that exist at a time, if fp32 copies of them are made.
CHUNK = 2**27
COMPILED_CHUNK = 2**28  # if the compiler makes hardly any copies
ALIGNED = 64


def shifted(labels: Tensor) -> Tensor:
    """Labels shifted so that each token predicts the next one. In packed rows the first label of a row is already -100,
    so that the last token of the row before predicts nothing.

    >>> shifted(torch.tensor([[5, 6, 7]]))
    tensor([[   6,    7, -100]])
    """
    return torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], dim=1)


def cross_entropy_of(hidden: Tensor, weight: Tensor, labels: Tensor, label_at: Tensor | None = None) -> Tensor:
    """The mean cross-entropy of `hidden @ weight.T` against labels; -100 does not count.

    `label_at` gives the positions of the labels that count. If it is given, logits are computed only there.

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
        # Divide only here, with the loss scale in the factor: in fp16, the quotients alone would underflow.
        hidden, weight = (None if part is None else part.mul_(factor / ctx.count) for part in ctx.gradients)
        return hidden, None if weight is None else weight.to(ctx.weight_dtype), None


def _head(hidden: Tensor, weight: Tensor) -> tuple[Tensor, int, int]:
    """The output layer's weight in the dtype of the computation, the size of the vocabulary, and how many rows of
    logits to compute at a time.
    """
    elements = CHUNK
    if hidden.is_cuda:
        elements = torch.cuda.get_device_properties(hidden.device).total_memory // 64  # in bf16, a 32nd of it
    words = weight.shape[0]
    # Matrix units are fastest with such sizes: GPT-2's 50,257 words take a third longer than 50,304.
    missing = -words % ALIGNED
    weights = weight.detach().to(_compute_type(hidden))
    return F.pad(weights, (0, 0, 0, missing)) if missing else weights, words, _chunk(hidden.shape[0], words, elements)


def _chunk(rows: int, words: int, elements: int) -> int:
    """The number of rows per chunk, with all chunks of equal size."""
    chunks = max(-(-rows * words // elements), 1)
    return max(-(-rows // chunks), 1)


def loss_and_gradient(logits: Tensor, labels: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """The sum of the losses, and its gradient with respect to the logits; columns after `words` are padding."""
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
    """Another model's hidden states for the same rows, and the weight of the distance from its predictions."""

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
    """The log-probability of each label, 0 where it is -100. Chunks of logits are recomputed in the backward pass.

    With a reference, each is reduced by the distance between the model's and the reference's predictions.

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
    """The log-probability of each label at a temperature, and the entropy of the prediction, without a gradient.

    >>> sampled_log_probabilities(nn.Linear(4, 10, bias=False), torch.zeros(1, 4), torch.tensor([3]), 1.0)
    (tensor([-2.3026]), tensor([2.3026]))
    """
    if getattr(head, "takes_labels", False) and not head.weight.requires_grad:  # type: ignore[attr-defined]
        return head(hidden, labels, temperature=temperature)  # type: ignore[call-arg, return-value]
    compiles = abilities(hidden.device).compiles
    chunk = _chunk(hidden.shape[0], int(getattr(head, "out_features", 2**17)), COMPILED_CHUNK if compiles else CHUNK)
    compute = _compiled_likelihood() if compiles else _likelihood

    def sampled(some: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        return compute(head(some), wanted, temperature)

    pieces = zip(torch.split(hidden, chunk), torch.split(labels, chunk), strict=True)
    chunks = [checkpoint(sampled, some, wanted, use_reentrant=False) for some, wanted in pieces]
    logprobs, entropies = zip(*chunks, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


class _ChunkedLikelihood(torch.autograd.Function):
    """The same for an output layer that is not trained. The gradient of a log-probability depends on its use only by a
    factor, so it is computed while the logits exist, and they need not be recomputed in the backward pass.
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
    columns after `words` are padding.
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


@cache
def _compiled_likelihood() -> Callable[..., tuple[Tensor, Tensor]]:
    """Only the logits' gradient is as large as the logits. Made when it is needed: it takes seconds to import."""
    return torch.compile(_likelihood, dynamic=True)


def _distance(head: Head, hidden: Tensor, their_head: Head, their_hidden: Tensor) -> Tensor:
    """The divergence of the model's probabilities from the reference's at each position."""
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
    """DFT: a token counts in proportion to its probability (https://arxiv.org/abs/2508.05629)."""
    return logprobs.exp()


def by_uncertainty(logits: Tensor, _found: Tensor, power: float) -> Tensor:
    """EAFT, as in LLaMA-Factory: weight by the entropy of the twenty likeliest tokens, which is at most about 3."""
    logarithms = logits.topk(min(20, logits.shape[-1]), dim=-1).values.log_softmax(-1)
    entropy = -(logarithms.exp() * logarithms).sum(-1)
    return (entropy / 3) ** power


def _compute_type(hidden: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def give_loss(head: nn.Module) -> None:
    """Let the output layer also accept labels: `head(hidden, labels, label_at)` is then the loss, and with a
    temperature the log-probabilities of labels and the entropies.

    It remains a call of that module, so that whatever gathers its weight for a call (FSDP, ZeRO-3) still does, and a
    trained copy of it uses its own weight.
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
