"""Short prefills as graphs. A prompt of some hundred tokens takes the host longer to start than the device to compute.

The tokens are filled up to one of a few sizes; what fills up belongs to no sequence and is written nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.graphs import Recorder
from npukit.inference.engine.paged import Prefill, Prompts

SIZES = (*range(128, 1025, 128), 1280, 1536, 1792, 2048)  # tokens
SEQUENCES = 32

Compute = Callable[[Tensor, Prefill], Tensor]


@dataclass(frozen=True)
class Recorded:
    """A graph, and what it reads and writes in fixed places."""

    replay: Callable[[], None]
    numbers: Tensor  # [4, tokens]: ids, positions and slots of new tokens; slots of all tokens
    borders: Tensor  # [2, sequences + 1]
    mask: Tensor | None  # of the adapters
    hidden: Tensor


class PromptGraphs:
    """The graphs of a prefill function, one a size, each made when it is first needed."""

    def __init__(self, compute: Compute, adapters: Adapters, recorder: Recorder) -> None:
        self._compute, self._adapters, self._recorder = compute, adapters, recorder
        self._graphs: dict[int, Recorded] = {}

    def forget(self) -> None:
        """Record again when they are next needed."""
        self._graphs.clear()

    def record(self) -> None:
        """Record the graphs of all sizes."""
        for size in reversed(SIZES):
            self._graphs[size] = self._record(size)

    def fit(self, prompts: Prompts) -> bool:
        """Whether there is a size for these prompts."""
        return len(prompts.kind.slots) <= SIZES[-1] and len(prompts.kind.new) <= SEQUENCES

    def run(self, prompts: Prompts, adapters: list[str | None]) -> Tensor:
        """The last hidden states; behind those of the prompts come some that only fill up."""
        kind, count = prompts.kind, prompts.numbers.shape[1]
        size = SIZES[bisect_left(SIZES, len(kind.slots))]
        if (recorded := self._graphs.get(size)) is None:
            recorded = self._graphs[size] = self._record(size)
        numbers = torch.zeros((4, size), dtype=torch.int64)
        numbers[:3, :count] = prompts.numbers
        numbers[3, : len(kind.slots)] = kind.slots
        borders = torch.empty((2, SEQUENCES + 1), dtype=torch.int32)
        for row, each in enumerate((kind.new_borders, kind.borders)):
            borders[row, : len(each)], borders[row, len(each) :] = each, each[-1]
        recorded.numbers.copy_(numbers.pin_memory(), non_blocking=True)
        recorded.borders.copy_(borders.pin_memory(), non_blocking=True)
        if recorded.mask is not None:
            self._adapters.select([*adapters, None], [*kind.new, size - count], recorded.mask)
        recorded.replay()
        return recorded.hidden

    def _record(self, size: int) -> Recorded:
        numbers = torch.zeros((4, size), dtype=torch.int64, device=self._recorder.device)
        borders = torch.zeros((2, SEQUENCES + 1), dtype=torch.int32, device=self._recorder.device)
        mask = self._adapters.select([None], [size])
        kind = Prefill(numbers[3], borders[0], borders[1], (), ())
        graph, hidden = self._recorder.record(lambda: self._compute(numbers[:3], kind))
        return Recorded(graph.replay, numbers, borders, mask, hidden)
