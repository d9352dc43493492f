"""Turn a causal language model into one that embeds or ranks texts."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from npukit.llm.models.body import body_of


def return_embeddings(model: Any) -> None:
    """Make `model(input_ids, attention_mask)` return the normalised last hidden state of each row."""
    head = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:
        head.requires_grad_(False)  # it is not used
    model.forward = MethodType(_embedded, model)


def return_preference(model: Any, yes: int, no: int) -> None:
    """Make it return how much more likely the next token is `yes` than `no`, as a score for each row."""
    model.answer_tokens = yes, no
    model.forward = MethodType(_preferred, model)


def _embedded(self: Any, attention_mask: Tensor, **batch: Any) -> Tensor:
    return F.normalize(_last_hidden(self, attention_mask, batch), dim=1)


def _preferred(self: Any, attention_mask: Tensor, **batch: Any) -> Tensor:
    logits = self.get_output_embeddings()(_last_hidden(self, attention_mask, batch))
    yes, no = self.answer_tokens
    difference: Tensor = logits[:, yes] - logits[:, no]
    return difference.unsqueeze(1)


def _last_hidden(model: Any, attention_mask: Tensor, batch: dict[str, Any]) -> Tensor:
    body = body_of(model)
    hidden: Tensor = body(**batch, attention_mask=attention_mask, use_cache=False)[0]
    rows = torch.arange(len(hidden), device=hidden.device)
    return hidden[rows, attention_mask.sum(1) - 1]
