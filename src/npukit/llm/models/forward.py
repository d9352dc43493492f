"""Teach a causal language model to return its loss: packed rows kept apart, no logits in full."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.llm import families
from npukit.llm.models.loss import IGNORED, give_loss, log_probabilities, shifted


def return_loss(model: Any) -> None:
    """From now on `model(input_ids, labels=…)` is the mean loss of the labels that count, as one tensor.

    Without labels it answers as before. Where several devices wrap the model, this is what they wrap.
    """
    head = model.get_output_embeddings()
    if families.of(model.config).plain_logits and getattr(head, "bias", None) is None:
        give_loss(head)
    for table in _body_of(model).modules():
        if isinstance(table, nn.Embedding):
            table.register_forward_hook(_in_compute_type)
    model.forward = MethodType(_forward, model)


def _body_of(model: Any) -> nn.Module:
    """All of a model but its output layer."""
    return getattr(model, model.base_model_prefix)  # type: ignore[no-any-return]


def _in_compute_type(_table: nn.Module, _args: Any, embedded: Tensor) -> Tensor:
    """What layers hand on is in the type that they compute in, not in that of the trained weights: half the traffic."""
    kind = embedded.device.type
    return embedded.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else embedded


def _forward(self: Any, *args: Any, labels: Tensor | None = None, each: bool = False, **batch: Any) -> Any:
    """With `each` not their mean is returned but the log-probability of every label, 0 where none counts."""
    if labels is None:
        return type(self).forward(self, *args, **batch)
    targets = shifted(labels)
    if each:
        hidden = _body_of(self)(*args, use_cache=False, **batch)[0]
        return log_probabilities(self.get_output_embeddings(), hidden, targets)
    head = self.get_output_embeddings()
    if getattr(head, "takes_labels", False):  # not if an adapter sits on it
        hidden = _body_of(self)(*args, use_cache=False, **batch)[0]
        return head(hidden, targets)
    logits = type(self).forward(self, *args, use_cache=False, **batch).logits
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return losses / (targets != IGNORED).sum().clamp(min=1)
