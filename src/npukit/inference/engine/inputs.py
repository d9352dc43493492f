"""The inputs of a pass in one piece of memory, so that one copy brings them to the device."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npukit.inference.engine.pool import NULL_BLOCK
from npukit.inference.engine.scheduler import Chunk
from npukit.inference.engine.sequence import Sequence
from npukit.launch.abilities import abilities

PackedInputs = npt.NDArray[np.int64]
FIELDS = 5  # of each token
LAST_TOKEN = -1  # instead of a token's id: the last one of its row, which only the device may know yet


class PassInputs(NamedTuple):
    """The row of each token of a pass, its length (the tokens of its sequence up to it), block, id and position, and
    after which of the tokens the next one is sampled.
    """

    rows: Tensor
    lengths: Tensor
    blocks: Tensor
    ids: Tensor
    positions: Tensor
    sampled: Tensor


class Inputs:
    """The memory of a pass's inputs, on the device and twice on the host: while the device reads from one, the next
    pass is written into the other.
    """

    def __init__(self, max_tokens: int, max_sampled: int, device: torch.device) -> None:
        self.device = device
        size = FIELDS * max_tokens + max_sampled
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._hosts = [torch.zeros(size, dtype=torch.int64, pin_memory=abilities(device).own_memory) for _ in range(2)]

    def on_device(self, tokens: int, num_sampled: int) -> PassInputs:
        """The inputs of a pass of this size, always at the same address."""
        table = self._device[: FIELDS * tokens].view(FIELDS, tokens)
        rows, lengths, blocks, ids, positions = table
        sampled = self._device[FIELDS * tokens : FIELDS * tokens + num_sampled]
        return PassInputs(rows, lengths, blocks, ids, positions, sampled)

    def send(self, packed: PackedInputs) -> None:
        """Copy them to the device without waiting for it."""
        self._hosts.reverse()
        host, size = self._hosts[0], len(packed)
        host.numpy()[:size] = packed
        self._device[:size].copy_(host[:size], non_blocking=True)


def pack_inputs(
    decodes: Many[Sequence], chunks: Many[Chunk], block_size: int, tokens: int, num_sampled: int, padding_row: int
) -> PackedInputs:
    """The inputs of a pass, padded to `tokens` with tokens of a row that no sequence has."""
    flat = np.empty(FIELDS * tokens + num_sampled, dtype=np.int64)
    table = flat[: FIELDS * tokens].reshape(FIELDS, tokens)
    rows: list[int] = []
    lengths: list[int] = []
    blocks: list[int] = []
    ids: list[int] = []
    offsets: list[int] = []
    for sequence in decodes:
        newest = sequence.decode_lengths[0] - 1
        ids += (_newest(sequence, newest), *sequence.draft_tokens)
        for length in sequence.decode_lengths:
            rows.append(sequence.row)
            lengths.append(length)
            blocks.append(sequence.blocks[(length - 1) // block_size])
            offsets.append(sequence.offset)
    at = len(lengths)
    table[0, :at], table[1, :at], table[2, :at], table[3, :at] = rows, lengths, blocks, ids
    table[4, :at] = table[1, :at] - 1 + np.asarray(offsets, dtype=np.int64)
    sampled = list(range(at))
    for chunk in chunks:
        places = np.arange(chunk.start, chunk.stop)
        own = table[:, at : at + len(places)]
        own[0], own[1] = chunk.sequence.row, places + 1
        own[2] = np.asarray(chunk.sequence.blocks)[places // block_size]
        own[3] = chunk.sequence.tokens[chunk.start : chunk.stop]
        own[4] = places + chunk.sequence.offset
        at += len(places)
        if chunk.is_last:
            sampled.append(at - 1)
    table[:, at:] = [[padding_row], [1], [NULL_BLOCK], [0], [0]]
    # The last place is repeated as padding, so that it changes nothing.
    flat[FIELDS * tokens :] = sampled + [sampled[-1] if sampled else 0] * (num_sampled - len(sampled))
    return flat


def _newest(sequence: Sequence, place: int) -> int:
    """The sequence's last token, at this place, if the host knows it."""
    return sequence.tokens[place] if place < len(sequence.tokens) else LAST_TOKEN
