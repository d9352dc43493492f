"""Passes as graphs: recorded once for each size, then started with one call.

The thousands of calls in a pass of a small model take the host longer than the device; a graph is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.inputs import Inputs, PackedInputs, PassInputs, pack_inputs
from npukit.inference.engine.scheduler import padded
from npukit.launch.abilities import abilities
from npukit.llm import families
from npukit.llm.models.experts import are_grouped

_TYPICAL_SIZE = 64  # tokens

T = TypeVar("T")
Compute = Callable[[PassInputs, "list[int]"], "tuple[Tensor, Tensor, Tensor]"]


class GraphRecorder:
    """Records graphs that share their memory: the results of one are read before another runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def forget(self) -> None:
        """Give up the shared memory; call it when no graph is left."""
        self._pool = None

    def synchronize(self) -> None:
        """Wait until no graph is running."""
        torch.get_device_module(self.device).synchronize()

    def record(self, compute: Callable[[], T]) -> tuple[Any, T]:
        """A graph of `compute`, and the tensors that hold its results after each replay."""
        module = torch.get_device_module(self.device)
        compute()  # warm up, so that nothing is recorded that happens only once
        self.synchronize()
        is_npu = abilities(self.device).torch_npu
        graph = module.NPUGraph() if is_npu else module.CUDAGraph()
        options = {"auto_dispatch_capture": True} if is_npu else {"capture_error_mode": "thread_local"}
        with module.graph(graph, pool=self._pool, **options):
            results = compute()
        self._pool = self._pool or graph.pool()
        return graph, results


@dataclass(frozen=True)
class Recorded:
    """A graph with the memory that it reads and writes."""

    graph: Any
    results: tuple[Tensor, Tensor, Tensor]
    mask: Tensor | None  # of the adapters


class Graphs:
    """The graphs of passes of up to `max_tokens` tokens, one for each size, recorded when first needed."""

    def __init__(
        self, compute: Compute, inputs: Inputs, adapters: Adapters, max_tokens: int, padding_row: int, max_sampled: int
    ) -> None:
        self._compute, self._inputs, self._adapters = compute, inputs, adapters
        self._sizes = sorted({padded(tokens + 1) for tokens in range(max_tokens)})
        self._padding_row, self._max_sampled = padding_row, max_sampled
        self._recorder = GraphRecorder(inputs.device)
        self._graphs: dict[int, Recorded] = {}

    def forget(self) -> None:
        """Record them again when they are next needed."""
        if self._graphs:
            self._recorder.synchronize()  # one of them may be running
        self._graphs.clear()
        self._recorder.forget()

    def record(self) -> None:
        """Record the graphs of all sizes: first a typical one, because the layers are compiled with it, then the
        largest, because the others fit into its memory.
        """
        for size in sorted(self._sizes, key=lambda size: (size != _TYPICAL_SIZE, -size)):
            self._graphs[size] = self._record(size)

    def num_sampled(self, size: int) -> int:
        """After how many of its tokens a pass of this size samples the next one."""
        return min(size, self._max_sampled)

    def run(self, packed: PackedInputs, adapters: list[str | None], counts: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """What `compute` returns, padded to the graph's size; the first counts[0] tokens have adapters[0] etc."""
        size = sum(counts)
        if (recorded := self._graphs.get(size)) is None:
            recorded = self._graphs[size] = self._record(size)
        self._inputs.send(packed)
        if recorded.mask is not None:
            self._adapters.select(adapters, counts, recorded.mask)
        is_npu = abilities(self._recorder.device).torch_npu
        if is_npu:  # the lengths in the graph cannot be changed while it runs
            self._recorder.synchronize()
        recorded.graph.replay()
        if is_npu:
            recorded.graph.update(cpu_update_input=[{"actual_seq_lengths_kv": packed[size : 2 * size].tolist()}])
        return recorded.results

    def _record(self, size: int) -> Recorded:
        num_sampled = self.num_sampled(size)
        self._inputs.send(pack_inputs([], [], 1, size, num_sampled, self._padding_row))  # padding only
        inputs = self._inputs.on_device(size, num_sampled)
        mask = self._adapters.select([None], [size])
        graph, results = self._recorder.record(lambda: self._compute(inputs, [1] * size))
        return Recorded(graph, results, mask)


def can_record(model: Any, dtype: torch.dtype) -> bool:
    """Whether passes can be graphs: experts of some models need the host in a pass, and unknown models may."""
    is_half, family = dtype in (torch.float16, torch.bfloat16), families.of(model.config)
    is_known = family is not families.UNKNOWN and are_grouped(model, dtype)
    return abilities(model.device).records_graphs and is_half and is_known
