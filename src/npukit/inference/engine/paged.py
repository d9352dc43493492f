"""Where the tokens of a pass are in the paged cache: the input of every attention kernel.

A pass has one of two forms. In `PagedRows` every token attends on its own, as the next token of a running sequence
does; tokens of a prompt can join as further rows. `Prefill` is long prompts, one after another, for kernels in which
neighbouring tokens share what they read.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from npukit.inference.engine.scheduler import Chunk
from npukit.launch.abilities import abilities
from npukit.llm.models.quantized import to_8_bits

NAME = "npukit_paged"  # what the names of attention over the cache begin with


@dataclass(frozen=True)
class PagedRows:
    """Each token with the blocks of its sequence and how many of the sequence's tokens it sees, including itself."""

    rows: Tensor  # the sequence of each token; those of one sequence are next to each other, in order
    tables: Tensor  # [tokens, blocks]
    lengths: Tensor
    host_lengths: list[int] | None  # for NPUs, whose kernel wants them on the host


@dataclass(frozen=True)
class Prefill:
    """New tokens, one sequence after another; a sequence may have earlier tokens in the cache."""

    slots: Tensor  # of all tokens of the sequences
    new_borders: Tensor  # where each sequence begins among the new tokens, and the last one ends
    borders: Tensor  # the same among all
    rows: tuple[int, ...]  # of the sequences, on the host
    new: tuple[int, ...]  # how many tokens of each sequence are new, on the host
    total: tuple[int, ...]
    groups: tuple[Tensor | None, ...] | None = None  # of all tokens of each sequence, if some see each other

    def to(self, device: torch.device) -> Prefill:
        """The same with its tensors on a device."""
        slots, new_borders, borders = (
            to_device(tensor, device) for tensor in (self.slots, self.new_borders, self.borders)
        )
        groups = self.groups and tuple(None if group is None else to_device(group, device) for group in self.groups)
        return replace(self, slots=slots, new_borders=new_borders, borders=borders, groups=groups)


@dataclass(frozen=True)
class PagedBatch:
    """The new tokens of a pass. A token's slot is its block times the block size, plus its offset in the block."""

    slots: Tensor
    kind: PagedRows | Prefill


class PagedCall(NamedTuple):
    """One layer's attention: the new tokens' queries, keys and values, [tokens, heads, size], and the layer's cache."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_cache: Tensor  # [blocks, block size, heads, size]
    value_cache: Tensor
    slots: Tensor
    scale: float
    window: int | None  # how many tokens each one sees at most, including itself
    key_scales: Tensor | None = None  # [blocks, block size, heads], of a cache in 8 bits
    value_scales: Tensor | None = None

    @property
    def is_latent(self) -> bool:
        """Whether the queries are for latent vectors and rotated keys side by side, see `latent.attend_rows`."""
        return self.query.shape[-1] > self.key_cache.shape[-1]


@dataclass(frozen=True)
class Prompts:
    """The inputs of a prefill on the host."""

    inputs: Tensor  # ids, slots and positions on each axis of the new tokens, [2 + axes, tokens]
    kind: Prefill


def pack(chunks: Many[Chunk], block_size: int) -> Prompts:
    """Concatenate chunks of sequences."""
    inputs, slots = [], []
    places = [chunk.sequence.positions(chunk.start, chunk.stop) for chunk in chunks]
    axes = max(map(len, places))
    for chunk, positions in zip(chunks, places, strict=True):
        blocks = torch.tensor(chunk.sequence.blocks[: -(-chunk.stop // block_size)])
        own = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[: chunk.stop]
        ids = torch.tensor(chunk.sequence.tokens[chunk.start : chunk.stop])
        inputs.append(torch.stack([ids, own[chunk.start :], *torch.from_numpy(positions).expand(axes, -1)]))
        slots.append(own)
    new, total = tuple(chunk.stop - chunk.start for chunk in chunks), tuple(chunk.stop for chunk in chunks)
    new_borders, borders = (torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) for lengths in (new, total))
    rows = tuple(chunk.sequence.row for chunk in chunks)
    kind = Prefill(torch.cat(slots), new_borders, borders, rows, new, total, _groups(chunks))
    return Prompts(torch.cat(inputs, 1), kind)


def _groups(chunks: Many[Chunk]) -> tuple[Tensor | None, ...] | None:
    own = tuple(_groups_of(chunk) for chunk in chunks)
    return own if any(groups is not None for groups in own) else None


def _groups_of(chunk: Chunk) -> Tensor | None:
    groups = chunk.sequence.groups
    if groups is None or not (groups[chunk.start : chunk.stop] >= 0).any():
        return None
    padded_groups = torch.full((chunk.stop,), -1)
    padded_groups[: len(groups)] = torch.from_numpy(groups[: chunk.stop])
    return padded_groups


def write(call: PagedCall) -> None:
    """Store each token's key and value in its slot."""
    for tokens, cache, scales in (
        (call.key, call.key_cache, call.key_scales),
        (call.value, call.value_cache, call.value_scales),
    ):
        if scales is not None:
            tokens, scale = to_8_bits(tokens, cache.dtype)
            scales.flatten(0, 1)[call.slots] = scale.squeeze(-1)
        cache.flatten(0, 1)[call.slots] = tokens


def read(call: PagedCall, pick: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """The two parts that `pick` takes from a cache, in the dtype of the queries: mostly keys and values."""
    caches = (call.key_cache, call.key_scales), (call.value_cache, call.value_scales)
    keys, values = (
        pick(cache) if scales is None else (pick(cache).float() * pick(scales)[..., None]).to(call.query.dtype)
        for cache, scales in caches
    )
    return keys, values


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for its work, as a copy of pageable memory would."""
    return tensor.pin_memory().to(device, non_blocking=True) if abilities(device).own_memory else tensor
