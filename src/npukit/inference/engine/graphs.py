"""Passes as graphs: recorded once for a number of tokens, then started with one call.

A pass of a small model is thousands of calls that take the host longer than the device; a graph is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.inputs import Inputs, Numbers, Pass, lay_out
from npukit.inference.engine.scheduler import padded
from npukit.launch.abilities import abilities
from npukit.llm import families
from npukit.llm.models.experts import are_grouped

_USUAL = 64  # tokens

T = TypeVar("T")
Compute = Callable[[Pass, "list[int]"], "tuple[Tensor, Tensor]"]


class GraphRecorder:
    """Makes graphs that share their memory: the results of one are read before another runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: Any = None

    def forget(self) -> None:
        """Memory that no graph has any more is not asked for again."""
        self._pool = None

    def synchronize(self) -> None:
        """Wait until no graph is running."""
        torch.get_device_module(self.device).synchronize()

    def record(self, compute: Callable[[], T]) -> tuple[Any, T]:
        """A graph of what `compute` does, and where its results are after each replay."""
        module = torch.get_device_module(self.device)
        compute()  # what is only done once is done before
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
    """A graph, and what it reads and writes in fixed places."""

    graph: Any
    results: tuple[Tensor, Tensor]
    mask: Tensor | None  # of the adapters


class Graphs:
    """The graphs of passes of up to `most` tokens for so many rows, one a size, each made when it is first needed."""

    def __init__(self, compute: Compute, inputs: Inputs, adapters: Adapters, most: int, rows: int, picks: int) -> None:
        self._compute, self._inputs, self._adapters = compute, inputs, adapters
        self._sizes = sorted({padded(tokens + 1) for tokens in range(most)})
        self._rows, self._picks = rows, picks
        self._recorder = GraphRecorder(inputs.device)
        self._graphs: dict[int, Recorded] = {}

    def forget(self) -> None:
        """Record again when they are next needed."""
        if self._graphs:
            self._recorder.synchronize()  # one of them may be running
        self._graphs.clear()
        self._recorder.forget()

    def record(self) -> None:
        """Record the graphs of all sizes: first a usual one, for which the layers are compiled then, and the largest
        before the others, which fit into its memory.
        """
        for size in sorted(self._sizes, key=lambda size: (size != _USUAL, -size)):
            self._graphs[size] = self._record(size)

    def picks(self, size: int) -> int:
        """From how many places a pass of this size chooses tokens."""
        return min(size, self._picks)

    def run(self, numbers: Numbers, adapters: list[str | None], counts: list[int]) -> tuple[Tensor, Tensor]:
        """Logits and tokens; behind the wanted ones come some that only fill up.

        `adapters` and `counts` say which adapter how many of the pass's tokens have.
        """
        size = sum(counts)
        if (recorded := self._graphs.get(size)) is None:
            recorded = self._graphs[size] = self._record(size)
        self._inputs.send(numbers)
        if recorded.mask is not None:
            self._adapters.select(adapters, counts, recorded.mask)
        if abilities(
            self._recorder.device
        ).torch_npu:  # lengths are changed in the graph, which may not be running then
            self._recorder.synchronize()
        recorded.graph.replay()
        if abilities(self._recorder.device).torch_npu:
            recorded.graph.update(cpu_update_input=[{"actual_seq_lengths_kv": numbers[size : 2 * size].tolist()}])
        return recorded.results

    def _record(self, size: int) -> Recorded:
        picks = self.picks(size)
        self._inputs.send(lay_out([], [], 1, size, picks, spare=self._rows))  # no sequence is touched
        inputs = self._inputs.on_device(size, picks)
        mask = self._adapters.select([None], [size])
        graph, results = self._recorder.record(lambda: self._compute(inputs, [1] * size))
        return Recorded(graph, results, mask)


def can_record(model: Any, dtype: torch.dtype) -> bool:
    """Whether passes can be graphs: where no operator of them asks the host for anything, as the experts of some models
    do, and perhaps code of a family that npukit does not know.
    """
    is_half, family = dtype in (torch.float16, torch.bfloat16), families.of(model.config)
    is_known = family is not families.UNKNOWN and are_grouped(model, dtype)
    return abilities(model.device).records_graphs and is_half and is_known
