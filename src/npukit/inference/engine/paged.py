"""Where the tokens of a batch belong in the paged cache; what every way of attention is given."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from npukit.inference.engine.scheduler import Chunk


@dataclass(frozen=True)
class Decode:
    """One new token a sequence."""

    tables: Tensor  # [sequences, blocks]
    lengths: Tensor  # of each sequence with its new token
    host_lengths: list[int] | None  # for NPUs, whose kernel wants them on the host


@dataclass(frozen=True)
class Prefill:
    """Runs of new tokens, one sequence behind the other; a sequence may have others before them in the cache."""

    slots: Tensor  # where all tokens of the sequences are
    new_borders: Tensor  # where each sequence begins among the new tokens, and the last one ends
    borders: Tensor  # the same among all
    new: tuple[int, ...]  # how many tokens of each sequence are new, for who wants that on the host
    total: tuple[int, ...]

    def to(self, device: torch.device) -> Prefill:
        """The same with its tensors on a device."""
        slots, new_borders, borders = (each.to(device) for each in (self.slots, self.new_borders, self.borders))
        return Prefill(slots, new_borders, borders, self.new, self.total)


@dataclass(frozen=True)
class Batch:
    """The new tokens of a call. The slot of a token is its block times the block size, plus its place in the block."""

    slots: Tensor
    kind: Decode | Prefill


@dataclass(frozen=True)
class Prompts:
    """What a prefill is made of, on the host: ids, positions and slots of the new tokens, [3, tokens], and the rest."""

    numbers: Tensor
    kind: Prefill


def pack(chunks: Many[Chunk], block_size: int) -> Prompts:
    """Lay chunks of sequences one behind the other."""
    numbers, slots = [], []
    for chunk in chunks:
        place = torch.arange(chunk.stop)
        own = torch.tensor(chunk.sequence.blocks)[place // block_size] * block_size + place % block_size
        ids = torch.tensor(chunk.sequence.tokens[chunk.start : chunk.stop])
        numbers.append(torch.stack([ids, place[chunk.start :], own[chunk.start :]]))
        slots.append(own)
    new, total = tuple(each.stop - each.start for each in chunks), tuple(each.stop for each in chunks)
    new_borders, borders = (torch.tensor([0, *accumulate(each)], dtype=torch.int32) for each in (new, total))
    return Prompts(torch.cat(numbers, 1), Prefill(torch.cat(slots), new_borders, borders, new, total))


def write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put each token's key and value, [tokens, heads, size], where it belongs."""
    key_cache.flatten(0, 1)[slots] = key
    value_cache.flatten(0, 1)[slots] = value
