"""The parts that causal language models of transformers have in common."""

from __future__ import annotations

from typing import Any

from torch import nn

# Whose logits are the output layer's product and nothing else: no scaling, no soft cap.
PLAIN_HEADS = frozenset(
    [
        "gemma",
        "glm",
        "glm4",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "olmo2",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "stablelm",
    ]
)


def body_of(model: Any) -> nn.Module:
    """All of a model but its output layer."""
    return getattr(model, model.base_model_prefix)  # type: ignore[no-any-return]


def decoder_layers(model: Any) -> nn.ModuleList:
    """The layers that make most of a model: its longest list of modules."""
    lists = [module for module in body_of(model).modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len)
