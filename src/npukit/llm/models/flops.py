"""How much a step computes."""

from __future__ import annotations

from torch import nn


def flops_per_token(model: nn.Module) -> float:
    """What a step computes for one token, attention left out: 2 for each weight forward, 2 backward through it, and 2
    for the gradient of each trained one. A table of embeddings is only looked up.
    """
    looked_up = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    multiplied = {
        id(part.weight) for part in model.modules() if hasattr(part, "weight") and not isinstance(part, nn.Embedding)
    }
    used = [p for p in model.parameters() if p.dim() > 1 and (id(p) not in looked_up or id(p) in multiplied)]
    return float(sum(p.numel() * (6 if p.requires_grad else 4) for p in used))
