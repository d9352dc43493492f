"""The parts that causal language models of transformers have in common."""

from __future__ import annotations

from typing import Any

from torch import nn

# Whose logits are the product with the output layer and nothing else (no scale, no soft cap), and whose attention is
# the plain one: these are packed and never make all logits.
PLAIN = frozenset(["gemma", "glm", "glm4", "gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"])


def is_plain(config: Any) -> bool:
    """Whether rows of this model can be packed."""
    return config.model_type in PLAIN


def body_of(model: Any) -> nn.Module:
    """All of a model but its output layer."""
    return getattr(model, model.base_model_prefix)  # type: ignore[no-any-return]


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
