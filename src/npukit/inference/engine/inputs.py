"""What the device is told about a pass, in one piece of memory, so that it gets there in one copy."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from npukit.inference.engine.pool import NOWHERE
from npukit.inference.engine.scheduler import Chunk
from npukit.inference.engine.sequence import Sequence
from npukit.launch.abilities import abilities

Numbers = npt.NDArray[np.int64]
ROWS = 5  # numbers of a token
NEWEST = -1  # instead of a token's id: the one that the row was last given, which only the device may know


class Pass(NamedTuple):
    """The tokens of a pass: each one's row, its length (the tokens of the row up to it), block, id and position, and
    `picks`, the places of those from which the next token is chosen.
    """

    rows: Tensor
    lengths: Tensor
    blocks: Tensor
    ids: Tensor
    positions: Tensor
    picks: Tensor


class Inputs:
    """The memory of passes of up to so many tokens and picks, on the device and twice on the host: the device may still
    be reading one while the next pass is put together in the other.
    """

    def __init__(self, tokens: int, picks: int, device: torch.device) -> None:
        self.device = device
        size = ROWS * tokens + picks
        self._device = torch.zeros(size, dtype=torch.int64, device=device)
        self._hosts = [torch.zeros(size, dtype=torch.int64, pin_memory=abilities(device).own_memory) for _ in range(2)]

    def on_device(self, tokens: int, picks: int) -> Pass:
        """Where a pass of this size finds its numbers; the same place each time."""
        table = self._device[: ROWS * tokens].view(ROWS, tokens)
        rows, lengths, blocks, ids, positions = table
        return Pass(rows, lengths, blocks, ids, positions, self._device[ROWS * tokens : ROWS * tokens + picks])

    def send(self, numbers: Numbers) -> None:
        """Tell the device, without waiting for it."""
        self._hosts.reverse()
        host, size = self._hosts[0], len(numbers)
        host.numpy()[:size] = numbers
        self._device[:size].copy_(host[:size], non_blocking=True)


def lay_out(
    decodes: Many[Sequence], chunks: Many[Chunk], block_size: int, tokens: int, picks: int, spare: int
) -> Numbers:
    """The numbers of a pass, filled up with tokens of a `spare` row that belong to nobody."""
    flat = np.empty(ROWS * tokens + picks, dtype=np.int64)
    table = flat[: ROWS * tokens].reshape(ROWS, tokens)
    lengths = [(sequence, length) for sequence in decodes for length in sequence.decoded]
    at = len(lengths)
    table[0, :at] = [sequence.row for sequence, _ in lengths]
    table[1, :at] = [length for _, length in lengths]
    table[2, :at] = [sequence.blocks[(length - 1) // block_size] for sequence, length in lengths]
    table[3, :at] = [token for sequence in decodes for token in (_newest(sequence), *sequence.guess)]
    table[4, :at] = [length - 1 + sequence.offset for sequence, length in lengths]
    picked = list(range(at))
    for chunk in chunks:
        places = np.arange(chunk.start, chunk.stop)
        own = table[:, at : at + len(places)]
        own[0], own[1] = chunk.sequence.row, places + 1
        own[2] = np.asarray(chunk.sequence.blocks)[places // block_size]
        own[3] = chunk.sequence.tokens[chunk.start : chunk.stop]
        own[4] = places + chunk.sequence.offset
        at += len(places)
        if chunk.is_last:
            picked.append(at - 1)
    table[:, at:] = [[spare], [1], [NOWHERE], [0], [0]]
    # A pick that nobody asked for repeats one that somebody did, so that it changes nothing.
    flat[ROWS * tokens :] = picked + [picked[-1] if picked else 0] * (picks - len(picked))
    return flat


def _newest(sequence: Sequence) -> int:
    """The token to go on from, where it is known here."""
    place = sequence.decoded[0] - 1
    return sequence.tokens[place] if place < len(sequence.tokens) else NEWEST
