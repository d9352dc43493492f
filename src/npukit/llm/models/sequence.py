"""Let ranks share the tokens of a row, for rows whose activations are too large for one device.

Every rank of a group receives the same rows and computes a slice of their tokens. Attention needs complete rows: there
the ranks exchange all heads of their tokens for some heads of all tokens (Ulysses, https://arxiv.org/abs/2309.14509),
and back afterwards. Padding needs no mask, because it comes last and attention is causal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_to_all_single

from npukit.launch.abilities import abilities


@dataclass(frozen=True)
class SharedRows:
    """How the ranks of a group share their rows.

    >>> SharedRows(dist.new_group([0, 1])).split(batch)
    """

    group: dist.ProcessGroup

    @property
    def ranks(self) -> int:
        return self.group.size()

    def split(self, batch: dict[str, Any]) -> dict[str, Any]:
        """This rank's part of a batch, as one packed row; the module's docstring says why there is no mask."""
        rows, width = batch["input_ids"].shape
        length = width + -width % self.ranks
        device = batch["input_ids"].device
        positions = batch.get("position_ids", torch.arange(width, device=device).expand(rows, -1))
        own = {"input_ids": self.part(batch["input_ids"], 0), "position_ids": self.part(positions, 0)}
        borders = _prolonged(batch, length - width) if "max_length" in batch else _alike(rows, length, device)
        return {**own, **borders, "shared": self}

    def part(self, whole: Tensor, filling: int) -> Tensor:
        """This rank's slice of values for every token of the rows, with the rows concatenated."""
        padded = F.pad(whole, (0, -whole.shape[1] % self.ranks), value=filling)
        return padded.reshape(1, -1).chunk(self.ranks, 1)[self.group.rank()]

    def join(self, own: Tensor, rows: int, width: int) -> Tensor:
        """The values for every token of the rows, from each rank's slice: the inverse of `part`."""
        # All ranks get the same. torch's own all_gather has no backward pass in a group without rank 0.
        everywhere = self._exchange(own.expand(self.ranks, *own.shape[1:]).contiguous())
        return everywhere.reshape(rows, -1, *own.shape[2:])[:, :width]

    def heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From all heads of this rank's tokens to this rank's heads of all tokens; both [1, heads, tokens, size]."""
        times = repeats(query.shape[1], key.shape[1], self.ranks)
        key, value = (part.repeat_interleave(times, 1) if times > 1 else part for part in (key, value))
        return self._heads(query), self._heads(key), self._heads(value)

    def _heads(self, part: Tensor) -> Tensor:
        part = F.pad(part, (0, 0, 0, 0, 0, -part.shape[1] % self.ranks))  # heads without meaning, where they do not fit
        _, heads, tokens, size = part.shape
        given = part.reshape(self.ranks, heads // self.ranks, tokens, size).contiguous()
        return self._exchange(given).transpose(0, 1).reshape(1, heads // self.ranks, -1, size)

    def tokens(self, result: Tensor, heads: int) -> Tensor:
        """The inverse: [all tokens, this rank's heads, size] to [this rank's tokens, heads, size]."""
        given = result.reshape(self.ranks, -1, *result.shape[1:]).contiguous()
        return self._exchange(given).transpose(0, 1).flatten(1, 2)[:, :heads]

    def _exchange(self, given: Tensor) -> Tensor:
        taken: Tensor = all_to_all_single(torch.empty_like(given), given, group=self.group)  # type: ignore[no-untyped-call]
        return taken


def _prolonged(batch: dict[str, Any], spare: int) -> dict[str, Any]:
    """The boundaries of packed rows, with additional padding after the last one."""
    borders: dict[str, Any] = {"max_length": batch["max_length"] + spare}
    borders["row_length"] = None if spare else batch["row_length"]
    if "row_ends" in batch:
        borders["row_ends"] = (*batch["row_ends"][:-1], batch["row_ends"][-1] + spare)
    else:
        ends = batch["cu_seqlens"]
        borders["cu_seqlens"] = torch.cat([ends[:-1], ends[-1:] + spare])
    return borders


def _alike(rows: int, length: int, device: torch.device) -> dict[str, Any]:
    """The boundaries of rows of equal length."""
    ends = tuple(range(length, rows * length + 1, length))
    borders: dict[str, Any] = {"max_length": length, "row_length": length, "row_ends": ends}
    if abilities(device).flash_attention:
        borders["cu_seqlens"] = torch.tensor((0, *ends), dtype=torch.int32, device=device)
    return borders


def repeats(heads: int, key_heads: int, ranks: int) -> int:
    """How often each key head must be repeated so that every rank has those of its query heads.

    >>> repeats(32, 8, 4), repeats(32, 4, 8), repeats(28, 4, 8)
    (1, 2, 7)
    """
    enough = math.lcm(key_heads, ranks)
    return enough // key_heads if heads % enough == 0 else heads // key_heads
