"""Decode steps as graphs: recorded once for a number of rows, then started with one call.

A step of a small model is thousands of calls that take the host longer than the device; a graph is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.pool import NOWHERE

# Batches are filled up to the next of these.
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

T = TypeVar("T")
Decode = Callable[[Tensor, "list[int]"], "tuple[Tensor, Tensor]"]


class Recorder:
    """Makes graphs that share their memory: the results of one are read before another runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def forget(self) -> None:
        """Memory that no graph has any more is not asked for again."""
        self._pool = None

    def record(self, compute: Callable[[], T]) -> tuple[Any, T]:
        """A graph of what `compute` does, and where its results are after each replay."""
        module = torch.get_device_module(self.device)
        compute()  # what is only done once is done before
        module.synchronize()
        is_npu = self.device.type == "npu"
        graph = module.NPUGraph() if is_npu else module.CUDAGraph()
        options = {"auto_dispatch_capture": True} if is_npu else {"capture_error_mode": "thread_local"}
        with module.graph(graph, pool=self._pool, **options):
            results = compute()
        self._pool = self._pool or graph.pool()
        return graph, results


@dataclass(frozen=True)
class Recorded:
    """A graph, and what it reads and writes in fixed places."""

    graph: Any
    results: tuple[Tensor, Tensor]
    mask: Tensor | None  # of the adapters


class Graphs:
    """The graphs of a decode function, one a size, each made when it is first needed.

    `inputs` is where the graphs find rows, lengths and blocks, [3, rows], on the device.
    """

    def __init__(self, decode: Decode, inputs: Tensor, adapters: Adapters, recorder: Recorder) -> None:
        self._decode, self._inputs, self._adapters, self._recorder = decode, inputs, adapters, recorder
        rows = inputs.shape[1]
        self._sizes = [*SIZES[: bisect_left(SIZES, rows)], rows]
        self._filler = torch.tensor([[rows], [1], [NOWHERE]])  # row, length and block that belong to nobody
        self._is_npu = inputs.device.type == "npu"
        self._graphs: dict[int, Recorded] = {}

    def forget(self) -> None:
        """Record again when they are next needed."""
        self._graphs.clear()

    def record(self) -> None:
        """Record the graphs of all sizes, the largest first, since the others then fit into its memory."""
        for size in reversed(self._sizes):
            self._graphs[size] = self._record(size)

    def run(self, host: Tensor, lengths: list[int], adapters: list[str | None]) -> tuple[Tensor, Tensor]:
        """Logits and tokens; behind the wanted rows come some that only fill up."""
        size = self._sizes[bisect_left(self._sizes, len(lengths))]
        if (recorded := self._graphs.get(size)) is None:
            recorded = self._graphs[size] = self._record(size)
        filling = size - len(lengths)
        host[:, len(lengths) : size] = self._filler
        self._inputs[:, :size].copy_(host[:, :size], non_blocking=True)
        if recorded.mask is not None:
            self._adapters.select([*adapters, None], [1] * len(adapters) + [filling], recorded.mask)
        recorded.graph.replay()
        if self._is_npu:
            recorded.graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths + [1] * filling}])
        return recorded.results

    def _record(self, size: int) -> Recorded:
        inputs = self._inputs[:, :size]
        inputs.copy_(self._filler.expand(-1, size))  # no sequence is touched
        mask = self._adapters.select([None], [size])
        graph, results = self._recorder.record(lambda: self._decode(inputs, [1] * size))
        return Recorded(graph, results, mask)


def can_record(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether decoding can be a graph: where no operator of it asks the host for anything."""
    return device.type in ("cuda", "npu") and dtype in (torch.float16, torch.bfloat16)
