"""The tokens of a call and their places in the paged cache, as every way of attention sees them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Where the tokens of a call belong. A decode has one token a sequence; a prefill has runs of them."""

    slots: Tensor  # of each new token: block times block size, plus the place in it
    tables: Tensor  # [sequences, blocks]
    lengths: Tensor  # of each sequence with its new tokens
    # Prefill alone, known to the host: how many new tokens each sequence has, and how many in all.
    new: tuple[int, ...] | None = None
    total: tuple[int, ...] = ()
    # Decode on NPUs, whose kernel wants the lengths on the host.
    host_lengths: list[int] | None = None
    block_size: int = 0

    @cached_property
    def all_slots(self) -> Tensor:
        """Prefill: where all tokens of the sequences are, new or not, one sequence behind the other."""
        device = self.tables.device
        place = torch.cat([torch.arange(total) for total in self.total]).to(device)
        row = torch.repeat_interleave(torch.tensor(self.total)).to(device)
        return self.tables[row, place // self.block_size].long() * self.block_size + place % self.block_size

    @cached_property
    def borders(self) -> tuple[Tensor, Tensor]:
        """Prefill: where each sequence begins, and the last one ends, among the new tokens and among all."""
        ends = ([0, *accumulate(lengths)] for lengths in (self.new or (), self.total))
        new, total = (torch.tensor(each, dtype=torch.int32).to(self.tables.device) for each in ends)
        return new, total


def write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Put each token's key and value, [tokens, heads, size], where it belongs."""
    key_cache.flatten(0, 1)[slots] = key
    value_cache.flatten(0, 1)[slots] = value
