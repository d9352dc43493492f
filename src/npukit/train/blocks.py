"""The repeated blocks of a model: the units of sharding, compilation and activation checkpointing."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the outermost ModuleLists whose modules have one class, such as the layers of a transformer.

    >>> blocks(nn.Sequential(nn.Embedding(9, 4), nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])))
    [Linear(in_features=4, out_features=4, bias=True), Linear(in_features=4, out_features=4, bias=True)]
    """
    if isinstance(model, nn.ModuleList | nn.Sequential):
        members = list(model)
        if len(members) > 1 and len({type(member) for member in members}) == 1:
            return members
    return [block for child in model.children() for block in blocks(child)]


def checkpoint_activations(model: nn.Module) -> None:
    """Recompute the activations inside each block in the backward pass instead of keeping them."""
    enable: Any = getattr(model, "gradient_checkpointing_enable", None)  # transformers' own
    if enable:
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    for block in blocks(model) or list(model.children()):
        again: dict[str, Any] = {}
        if norms := [module for module in block.modules() if isinstance(module, _BatchNorm)]:
            again["context_fn"] = functools.partial(_contexts, norms)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, **again)


def _contexts(norms: list[_BatchNorm]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of the forward pass and of its recomputation."""
    return nullcontext(), _counting_nothing(norms)


@contextmanager
def _counting_nothing(norms: list[_BatchNorm]) -> Iterator[None]:
    """Statistics count a batch once, not again when it is recomputed."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count
