"""Batches in an order that depends on the seed alone, so that a run can resume from any step.

A step takes `world_size * accumulation` batches, which are dealt to the ranks in turn: a step has the same rows however
many ranks share them. The last step of an epoch may be smaller; a rank without a batch computes one with weight 0, so
that all ranks make the same calls.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.train.randomness import Randomness, seed_of

MAX_WORKERS = 4
warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, if the user wants that

Collate = Callable[[list[Any]], Any]
Weight = Callable[[Any], int]


@dataclass(frozen=True)
class Position:
    """The place in the data: finished epochs, and finished steps of the present one."""

    epoch: int = 0
    step: int = 0

    def after(self, ends_epoch: bool) -> Position:
        return Position(self.epoch + 1) if ends_epoch else replace(self, step=self.step + 1)


START = Position()


@dataclass(frozen=True)
class Split:
    """How the rows of a step are divided among ranks and batches."""

    batch_size: int
    accumulation: int
    rank: int
    world_size: int

    @property
    def rows_per_step(self) -> int:
        return self.batch_size * self.accumulation * self.world_size

    def deal(self, indices: Sequence[int]) -> Iterator[tuple[int, Sequence[int], bool]]:
        """This rank's batches of a step: index in the step, indices of their rows, whether they have weight."""
        batches = [indices[start : start + self.batch_size] for start in range(0, len(indices), self.batch_size)]
        for number in range(self.rank, math.ceil(len(batches) / self.world_size) * self.world_size, self.world_size):
            counts = number < len(batches)
            yield number, list(batches[number if counts else 0]), counts


class Batch(NamedTuple):
    """What a rank computes at once, and whether a step or epoch ends with it."""

    content: Any
    weight: int
    size: int
    ends_step: bool
    ends_epoch: bool
    rows: Sequence[int]  # their indices in the data set


def with_stand_ins(batches: Sequence[Batch]) -> Iterator[Batch]:
    """The batches of a step. In place of one without weight, which may average over nothing, comes another one."""
    stand_in = next((batch for batch in batches if batch.weight), batches[0])
    return (batch if batch.weight else batch._replace(content=stand_in.content) for batch in batches)


def row_indices(batches: Sequence[Batch]) -> list[int]:
    """The indices of all rows of some batches."""
    return [index for batch in batches for index in batch.rows]


class _BatchPlan(NamedTuple):
    """A batch that is to be collated."""

    rows: Sequence[int]
    seed: int
    counts: bool
    ends_step: bool
    ends_epoch: bool


class _Collator:
    """Collates batches. Random numbers depend on a batch's place in the order, not on the process."""

    def __init__(self, collate: Collate, weight: Weight, size: Weight) -> None:
        self._collate = collate
        self._weight = weight
        self._size = size

    def collate_rows(self, plan: _BatchPlan, get_rows: Callable[[Sequence[int]], list[Any]]) -> Batch:
        with Randomness(plan.seed):
            content = self._collate(get_rows(plan.rows))
        weight, size = (int(count(content)) if plan.counts else 0 for count in (self._weight, self._size))
        return Batch(content, weight, size, plan.ends_step, plan.ends_epoch, plan.rows)


def _plan(
    indices: Sequence[int], split: Split, seed: int, position: Position, ends_epoch: bool
) -> Iterator[_BatchPlan]:
    shares = list(split.deal(indices))
    for number, share, counts in shares:
        ends_step = number == shares[-1][0]
        yield _BatchPlan(share, seed_of(seed, position.epoch, position.step, number), counts, ends_step, ends_epoch)


class _BatchSampler(Sampler[_BatchPlan]):
    """The batches of a data set with a length, starting at `start`, epoch after epoch."""

    def __init__(self, rows: int, split: Split, seed: int, shuffle: bool, epochs: int | None, repeats: int = 1) -> None:
        self.start = START
        self._rows = rows
        self._split = split
        self._repeats = repeats
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs

    def __iter__(self) -> Iterator[_BatchPlan]:
        size = self._split.rows_per_step
        for epoch in itertools.count(self.start.epoch):
            if epoch == self._epochs:
                return
            order = self._row_order(epoch)
            first = self.start.step if epoch == self.start.epoch else 0
            last = math.ceil(self._rows / size) * self._repeats - 1
            for step in range(first, last + 1):
                at = step // self._repeats * size
                rows = order[at : at + size].tolist()
                yield from _plan(rows, self._split, self._seed, Position(epoch, step), step == last)

    def _row_order(self, epoch: int) -> torch.Tensor:
        if not self._shuffle:
            return torch.arange(self._rows)
        return torch.randperm(self._rows, generator=torch.Generator().manual_seed(seed_of(self._seed, epoch)))


class _MapDataset(Dataset[Batch]):
    def __init__(self, rows: Any, collator: _Collator) -> None:
        self._rows = rows
        self._collator = collator

    def __getitem__(self, plan: _BatchPlan) -> Batch:
        return self._collator.collate_rows(plan, self._get)

    def _get(self, indices: Sequence[int]) -> list[Any]:
        if hasattr(self._rows, "__getitems__"):
            return list(self._rows.__getitems__(list(indices)))
        return [self._rows[number] for number in indices]


class _IterableBatches(IterableDataset[Batch]):
    """The batches of a data set that is read from its beginning. Every rank reads it all and keeps its share."""

    def __init__(self, rows: Iterable[Any], split: Split, collator: _Collator, seed: int, epochs: int | None) -> None:
        self.start = START
        self._rows = rows
        self._split = split
        self._collator = collator
        self._seed = seed
        self._epochs = epochs

    def __iter__(self) -> Iterator[Batch]:
        for epoch in itertools.count(self.start.epoch):
            if epoch == self._epochs:
                return
            if hasattr(self._rows, "set_epoch"):
                self._rows.set_epoch(epoch)
            yield from self._one_epoch(epoch)

    def _one_epoch(self, epoch: int) -> Iterator[Batch]:
        randomness = Randomness(seed_of(self._seed, epoch))  # for the data set's own random numbers
        size = self._split.rows_per_step
        first = self.start.step if epoch == self.start.epoch else 0
        with randomness:
            rows = iter(self._rows)
            chunk = list(itertools.islice(rows, first * size, (first + 1) * size))
        if not chunk and first == 0:
            raise _no_rows(self._rows)
        for step in itertools.count(first):
            with randomness:
                following = list(itertools.islice(rows, size))
            indices = range(step * size, step * size + len(chunk))
            for plan in _plan(indices, self._split, self._seed, Position(epoch, step), not following):
                yield self._collator.collate_rows(plan, functools.partial(_pick, chunk, step * size))
            if not following:
                return
            chunk = following


class Data:
    """A data set as batches.

    `steps_per_epoch` is None for a data set without a length. Without `epochs` it never ends. With `repeats`, this many
    steps in a row have the same rows.
    """

    def __init__(
        self,
        rows: Any,
        split: Split,
        device: torch.device,
        *,
        collate: Collate,
        weight: Weight,
        size: Weight | None = None,
        seed: int,
        shuffle: bool = False,
        workers: int | None = None,
        epochs: int | None = None,
        repeats: int = 1,
    ) -> None:
        if isinstance(rows, DataLoader):
            raise NpukitError(
                "Pass Trainer the data set itself, not a DataLoader: batch_size, shuffle and workers are options, and "
                "collate_fn is Trainer's collate."
            )
        collator = _Collator(collate, weight, size or weight)
        streaming = isinstance(rows, IterableDataset) or not hasattr(rows, "__getitem__")
        if not streaming and len(rows) == 0:
            raise _no_rows(rows)
        self.steps_per_epoch = None if streaming else math.ceil(len(rows) / split.rows_per_step) * repeats
        self._source: _IterableBatches | _BatchSampler
        if streaming:
            self._source = _IterableBatches(rows, split, collator, seed, epochs)
            data: dict[str, Any] = {"dataset": self._source}
        else:
            self._source = _BatchSampler(len(rows), split, seed, shuffle, epochs, repeats)
            data = {"dataset": _MapDataset(rows, collator), "sampler": self._source}
        workers = _workers(device, streaming) if workers is None else min(workers, 1) if streaming else workers
        self._options: dict[str, Any] = {
            **data,
            "num_workers": workers,
            "pin_memory": abilities(device).own_memory,
            "persistent_workers": workers > 0,
            "prefetch_factor": max(2, math.ceil((split.accumulation + 1) / workers)) if workers else None,
        }

    @functools.cached_property
    def _loader(self) -> DataLoader[Any]:
        return DataLoader(
            batch_size=None,
            collate_fn=_identity,
            worker_init_fn=_leave_group,
            generator=torch.Generator(),  # of its own, not the one that dropout uses
            **self._options,
        )

    def end_workers(self) -> None:
        """Stop the workers when nobody iterates over `steps`: at exit, torch before 2.13 waits 5 seconds for each."""
        self.__dict__.pop("_loader", None)

    def steps(self, start: Position = START) -> Iterator[list[Batch]]:
        """The batches of each step, starting at `start`."""
        self._source.start = start
        step_batches: list[Batch] = []
        threads = torch.get_num_threads()
        try:
            for number, batch in enumerate(self._loader):
                if number == 0:
                    # The loader's pin_memory thread sets one thread for all that start later: autograd would have one
                    # core, and torch.compile would compile a recomputed layer again for that.
                    torch.set_num_threads(threads)
                step_batches.append(batch)
                if batch.ends_step:
                    yield step_batches
                    step_batches = []
        except NpukitError as error:  # a worker's error has a traceback before its sentence
            raise NpukitError(str(error).rpartition("NpukitError: ")[2].strip()) from None


def _workers(device: torch.device, streaming: bool) -> int:
    """None on a CPU, which is busy computing; one for a stream, whose rows would otherwise come twice."""
    if not abilities(device).own_memory:
        return 0
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return 1 if streaming else min(MAX_WORKERS, max(1, (os.cpu_count() or 1) // ranks_here))


def _no_rows(rows: Any) -> NpukitError:
    if isinstance(rows, Iterator):
        return NpukitError(
            "The data set is an iterator and has been read to its end: give a list, or an IterableDataset, which "
            "can be iterated more than once."
        )
    return NpukitError("The data set has no rows: check the files that it reads.")


def _pick(rows: Sequence[Any], first: int, indices: Sequence[int]) -> list[Any]:
    return [rows[number - first] for number in indices]


def _leave_group(worker: int) -> None:
    """Leave the rank's process group, to which launchers send SIGTERM: the rank needs its workers for the step."""
    os.setpgrp()


def _identity(batch: Any) -> Any:
    return batch
