"""Decode steps as graphs: recorded once for a number of rows, then started with one call.

A step of a small model is thousands of calls that take the host longer than the device; a graph is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Batches are filled up to the next of these.
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)

Decode = Callable[[Tensor, "list[int]"], "tuple[Tensor, Tensor]"]


class Graphs:
    """The graphs of a decode function, one a size, each made when it is first needed.

    `inputs` is where the graphs find rows, lengths and blocks, [3, rows], on the device.
    """

    def __init__(self, decode: Decode, inputs: Tensor, rows: int) -> None:
        self._decode, self._inputs = decode, inputs
        self._sizes = [*SIZES[: bisect_left(SIZES, rows)], rows]
        self._filler = rows  # the row that belongs to nobody
        self._device = torch.get_device_module(inputs.device)
        self._graphs: dict[int, tuple[Any, tuple[Tensor, Tensor]]] = {}
        self._pool: Any = None

    def run(self, host: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
        """Logits and tokens; behind the wanted rows come some that only fill up."""
        size = self._sizes[bisect_left(self._sizes, len(lengths))]
        filling = size - len(lengths)
        host[:, len(lengths) : size] = torch.tensor([[self._filler], [1], [0]])
        self._inputs[:, :size].copy_(host[:, :size], non_blocking=True)
        lengths = lengths + [1] * filling
        if size not in self._graphs:
            self._graphs[size] = self._record(size, lengths)
        graph, results = self._graphs[size]
        graph.replay()
        if self._inputs.device.type == "npu":
            graph.update(cpu_update_input=[{"actual_seq_lengths_kv": lengths}])
        return results

    def _record(self, size: int, lengths: list[int]) -> tuple[Any, tuple[Tensor, Tensor]]:
        inputs = self._inputs[:, :size]
        self._decode(inputs, lengths)  # what is only done once is done before
        self._device.synchronize()
        is_npu = self._inputs.device.type == "npu"
        graph = self._device.NPUGraph() if is_npu else self._device.CUDAGraph()
        options = {"auto_dispatch_capture": True} if is_npu else {"capture_error_mode": "thread_local"}
        with self._device.graph(graph, pool=self._pool, **options):
            results = self._decode(inputs, lengths)
        self._pool = self._pool or graph.pool()
        return graph, results
