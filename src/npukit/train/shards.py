"""Sharded tensors, of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def local(value: Tensor) -> Tensor:
    """This rank's shard of a tensor, detached, or all of it if it is not sharded."""
    value = value.detach()
    return value.to_local() if isinstance(value, DTensor) else value


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """A context in which FSDP2 has gathered all parameters of a model, in the dtype that they compute in."""
    parts = [part for part in model.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.reshard()  # parameters that an evaluation left gathered may be older than the last update
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()


@contextmanager
def without_hooks_of(package: str, model: nn.Module) -> Iterator[None]:
    """A context without the forward hooks of a package, such as those that gather weights and free them."""
    tables = [table for part in model.modules() for table in (part._forward_pre_hooks, part._forward_hooks)]
    before = [dict(table) for table in tables]
    for table in tables:
        for number, hook in list(table.items()):
            if str(getattr(hook, "__module__", "")).startswith(package):
                del table[number]
    try:
        yield
    finally:
        for table, hooks in zip(tables, before, strict=True):  # in their order
            added = {number: hook for number, hook in table.items() if number not in hooks}
            table.clear()
            table.update(hooks | added)
