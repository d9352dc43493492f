"""Teach a causal language model to return its loss: packed rows kept apart, no logits in full."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from npukit.llm.models.loss import IGNORED, give_loss, shifted
from npukit.llm.models.shape import PLAIN_HEADS, body_of


def return_loss(model: Any) -> None:
    """From now on `model(input_ids, labels=…)` is the mean loss of the labels that count, as one tensor.

    Without labels it answers as before. Where several devices wrap the model, this is what they wrap.
    """
    original = model.forward
    head = model.get_output_embeddings()
    plain = model.config.model_type in PLAIN_HEADS and getattr(head, "bias", None) is None
    if plain:
        give_loss(head)

    def forward(*args: Any, labels: Tensor | None = None, **batch: Any) -> Any:
        if labels is None:
            return original(*args, **batch)
        targets = shifted(labels, batch.get("cu_seqlens"))
        if plain:
            hidden = body_of(model)(*args, use_cache=False, **_known(batch))[0]
            return head(hidden, targets)
        logits = original(*args, use_cache=False, **_known(batch)).logits
        losses = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return losses / (targets != IGNORED).sum().clamp(min=1)

    model.forward = forward


def _known(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if value is not None}
