"""Where the tokens of a batch belong in the paged cache; what every way of attention is given."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Runs:
    """What a prefill knows beside: each sequence has a run of new tokens, and maybe others before them."""

    new: tuple[int, ...]  # how many, of each sequence
    total: tuple[int, ...]  # with those before
    slots: Tensor  # where all tokens of the sequences are, one sequence behind the other
    new_borders: Tensor  # where each sequence begins among the new tokens, and the last one ends
    borders: Tensor  # the same among all


@dataclass(frozen=True)
class Batch:
    """A decode has one token a sequence; a prefill has runs of them."""

    slots: Tensor  # of each new token: block times block size, plus the place in it
    tables: Tensor  # [sequences, blocks]
    lengths: Tensor  # of each sequence with its new tokens
    runs: Runs | None = None
    host_lengths: list[int] | None = None  # for a decode on NPUs, whose kernel wants them on the host


def runs_of(new: tuple[int, ...], total: tuple[int, ...], tables: Tensor, block_size: int) -> Runs:
    """Prepare once what every layer of a prefill needs."""
    place = torch.cat([torch.arange(each) for each in total])
    row = torch.repeat_interleave(torch.tensor(total))
    ends = [torch.tensor([0, *accumulate(each)], dtype=torch.int32) for each in (new, total)]
    place, row, new_borders, borders = (each.to(tables.device) for each in (place, row, *ends))
    slots = tables[row, place // block_size].long() * block_size + place % block_size
    return Runs(new, total, slots, new_borders, borders)


def write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put each token's key and value, [tokens, heads, size], where it belongs."""
    key_cache.flatten(0, 1)[slots] = key
    value_cache.flatten(0, 1)[slots] = value
