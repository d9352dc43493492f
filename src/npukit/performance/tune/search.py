"""Which settings to try next: one at a time, from the best that is known, with the same rows in every step."""

from __future__ import annotations

from collections.abc import Iterator

from npukit.llm.config.options import Config
from npukit.performance.plan.fit import Changes

WAYS = ("ddp", "fsdp2", "zero2")  # the others only save more memory
Group = list[Changes]  # alternatives in the order in which they are tried; the first that is no faster ends it


def groups(config: Config, cores: int, ranks: int = 1) -> Iterator[Group]:
    """What to try from `config` on, question by question; `cores` are those of one rank.

    >>> next(groups(config, cores=8))
    [{'training.batch_size': 2, 'training.accumulation': 4}, {'training.batch_size': 4, 'training.accumulation': 2}]
    """
    yield list(_larger_batches(config))
    yield list(_smaller_batches(config))
    yield [{"training.activation_checkpointing": not config.training.activation_checkpointing}]
    yield [{"training.workers": workers} for workers in (0, 2, 4) if _is_new(config, workers, cores)]
    yield list(_longer_packs(config))
    for way in WAYS if ranks > 1 else ():
        yield [{"training.parallel": way}] if way != config.training.parallel else []


def _larger_batches(config: Config) -> Iterator[Changes]:
    size, accumulation = config.training.batch_size, config.training.accumulation
    while accumulation % 2 == 0:
        size, accumulation = size * 2, accumulation // 2
        yield {"training.batch_size": size, "training.accumulation": accumulation}


def _smaller_batches(config: Config) -> Iterator[Changes]:
    size, accumulation = config.training.batch_size, config.training.accumulation
    while size % 2 == 0:
        size, accumulation = size // 2, accumulation * 2
        yield {"training.batch_size": size, "training.accumulation": accumulation}


def _is_new(config: Config, workers: int, cores: int) -> bool:
    return workers != config.training.workers and workers <= cores


def _longer_packs(config: Config) -> Iterator[Changes]:
    """Longer packed rows, fewer of them in a step: as many tokens as before."""
    if not config.data.packing:
        return
    length, accumulation = config.data.pack_length or config.data.cutoff, config.training.accumulation
    while accumulation % 2 == 0:
        length, accumulation = length * 2, accumulation // 2
        yield {"data.pack_length": length, "training.accumulation": accumulation}
