"""Make a causal language model return its loss, with packed rows kept separate and without full logits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.llm import families
from npukit.llm.models.body import body_of
from npukit.llm.models.loss import (
    IGNORED,
    Reference,
    Weighting,
    give_loss,
    log_probabilities,
    sampled_log_probabilities,
    shifted,
)
from npukit.llm.models.sequence import SharedRows


def return_loss(model: Any, balance_experts: float = 0.0, weighting: Weighting | None = None) -> None:
    """Make `model(input_ids, labels=…)` return the mean loss of the labels that count, as one tensor.

    With `weighting`, some tokens count more than others. Without labels, the model works as before. When a model is
    distributed over devices, this is applied first.
    """
    head = model.get_output_embeddings()
    family = families.of(model.config)
    if family.plain_logits and getattr(head, "bias", None) is None:
        give_loss(head)
    for table in body_of(model).modules():
        if isinstance(table, nn.Embedding):
            table.register_forward_hook(_in_compute_type)
    model.forward = MethodType(_forward, model)
    model.shared = None
    model.weighting = weighting
    model.reference = None
    model.balance_experts = balance_experts if hasattr(model, "num_experts_per_tok") else 0.0


def share_rows(model: Any, group: dist.ProcessGroup) -> None:
    """Let the ranks of `group`, which receive the same batches, each compute a part of the tokens.

    The mean of their results is the mean loss. Log-probabilities of `each` label, and the scores and embeddings of a
    model without a loss of its own, are returned in full by all of them.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    shared = SharedRows(group)
    if hasattr(model, "shared"):
        model.shared = shared
    else:
        body = body_of(model)
        body.forward = partial(_full_hidden_states, body.forward, shared)


def _full_hidden_states(forward: Callable[..., Any], shared: SharedRows, input_ids: Tensor, **_: Any) -> Any:
    """The last hidden states of all tokens. Rows are padded at their end, and need neither mask nor positions."""
    outputs = forward(**shared.split({"input_ids": input_ids}), use_cache=False)
    outputs.last_hidden_state = shared.join(outputs.last_hidden_state, *input_ids.shape)
    return outputs


def _imbalance(model: Any, outputs: Any, batch: dict[str, Any]) -> Tensor:
    """How unevenly the experts are used, according to the model's own code."""
    measure = sys.modules[type(model).__module__].load_balancing_loss_func
    imbalance: Tensor = measure(
        outputs.router_logits, model.num_experts, model.num_experts_per_tok, batch.get("attention_mask")
    )
    return imbalance


def stay_near(model: Any, weight: float, other: Any, around: Callable[[], AbstractContextManager[Any]]) -> None:
    """Add to the loss the distance from another model's predictions, or from its own inside the context `around`."""

    @torch.no_grad()
    def reference(args: Any, batch: dict[str, Any]) -> Reference:
        with around():
            head, hidden = _states(other, args, batch)
        return Reference(head, hidden, weight)

    model.reference = reference


def _states(model: Any, args: Any, batch: dict[str, Any]) -> tuple[Any, Tensor]:
    """The input and the function of the logits; the logits themselves if the family computes more than a product."""
    if families.of(model.config).plain_logits:
        return model.get_output_embeddings(), body_of(model)(*args, use_cache=False, **batch)[0]
    return nn.Identity(), type(model).forward(model, *args, use_cache=False, **batch).logits


def _log_probabilities(model: Any, args: Any, batch: dict[str, Any], targets: Tensor, plain: bool) -> Tensor:
    """The log-probability of each label, weighted and compared with a reference unless the plain ones are requested."""
    head, hidden = _states(model, args, batch)
    if plain:
        return log_probabilities(head, hidden, targets)
    reference = model.reference(args, batch) if model.reference else None
    return log_probabilities(head, hidden, targets, model.weighting, reference)


def _in_compute_type(_table: nn.Module, _args: Any, embedded: Tensor) -> Tensor:
    """Let layers output the dtype that they compute in instead of the trained weights': half the memory traffic."""
    kind = embedded.device.type
    return embedded.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else embedded


def _forward(
    self: Any,
    *args: Any,
    labels: Tensor | None = None,
    label_weights: Tensor | None = None,
    label_at: Tensor | None = None,
    per_token: bool = False,
    places: Tensor | None = None,
    temperature: float = 1.0,
    **batch: Any,
) -> Any:
    """The mean loss of the labels; `label_at` gives the positions of those that count in the flattened batch, if known.

    With `per_token`, the log-probability of every label instead, 0 for tokens without one. With `places`, positions in
    the flattened batch, the log-probabilities of the labels that follow them at a temperature, and the entropies.
    """
    if labels is None:
        return type(self).forward(self, *args, **batch)
    targets = shifted(labels)
    if places is not None:
        head, hidden = _states(self, args, batch)
        return sampled_log_probabilities(head, hidden.flatten(0, 1)[places], targets.flatten()[places], temperature)
    weights = None if label_weights is None else shifted(label_weights)  # the last position has no label
    if self.shared is None:
        return _loss(self, args, batch, targets, weights, per_token, label_at)
    own = self.shared.part(targets, IGNORED)
    weights = None if weights is None else self.shared.part(weights, 1)
    loss = _loss(self, args, self.shared.split(batch), own, weights, per_token)
    if per_token:
        return self.shared.join(loss, *targets.shape)
    counted, of_all = ((labels != IGNORED).sum() for labels in (own, targets))
    return loss * counted * self.shared.ranks / of_all.clamp(min=1)


def _loss(
    self: Any,
    args: Any,
    batch: dict[str, Any],
    targets: Tensor,
    weights: Tensor | None,
    per_token: bool,
    label_at: Tensor | None = None,
) -> Any:
    if per_token or self.weighting or weights is not None:
        likelihoods = _log_probabilities(self, args, batch, targets, plain=per_token)
        if per_token:
            return likelihoods
        likelihoods = likelihoods if weights is None else likelihoods * weights
        return -likelihoods.sum() / (targets != IGNORED).sum().clamp(min=1)
    head = self.get_output_embeddings()
    if getattr(head, "takes_labels", False):  # not if it has an adapter
        if self.balance_experts:
            outputs = body_of(self)(*args, use_cache=False, output_router_logits=True, **batch)
            return head(outputs[0], targets, label_at) + self.balance_experts * _imbalance(self, outputs, batch)
        hidden = body_of(self)(*args, use_cache=False, **batch)[0]
        return head(hidden, targets, label_at)
    routed = {"output_router_logits": True} if self.balance_experts else {}
    outputs = type(self).forward(self, *args, use_cache=False, **routed, **batch)
    logits = outputs.logits.float().flatten(0, 1)
    losses = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    mean = losses / (targets != IGNORED).sum().clamp(min=1)
    return mean + self.balance_experts * outputs.aux_loss if routed else mean
