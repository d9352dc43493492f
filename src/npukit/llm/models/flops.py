"""Count the operations of a training step."""

from __future__ import annotations

from torch import nn


def flops_per_token(model: nn.Module) -> float:
    """The operations of a step per token without attention: per weight 2 forward, 2 backward through it, and 2 for the
    gradient if it is trained. Embeddings are only looked up.
    """
    looked_up = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    multiplied = {
        id(part.weight) for part in model.modules() if hasattr(part, "weight") and not isinstance(part, nn.Embedding)
    }
    used = [p for p in model.parameters() if p.dim() > 1 and (id(p) not in looked_up or id(p) in multiplied)]
    return float(sum(p.numel() * (6 if p.requires_grad else 4) for p in used))
