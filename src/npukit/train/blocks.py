"""The repeated blocks of a model: what is sharded, compiled or computed twice as one."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


def blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost lists of modules that are all of one kind, such as the layers of a transformer.

    >>> blocks(nn.Sequential(nn.Embedding(9, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])))
    [Linear(in_features=4, out_features=4, bias=True), Linear(in_features=4, out_features=4, bias=True)]
    """
    if isinstance(model, nn.ModuleList | nn.Sequential):
        members = list(model)
        if len(members) > 1 and len({type(member) for member in members}) == 1:
            return members
    return [block for child in model.children() for block in blocks(child)]


def checkpoint_activations(model: nn.Module) -> None:
    """Compute the activations inside each block again in the backward pass, instead of keeping them."""
    enable: Any = getattr(model, "gradient_checkpointing_enable", None)  # transformers' own
    if enable:
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    for block in blocks(model) or list(model.children()):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
