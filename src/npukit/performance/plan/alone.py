"""Run one process as rank 0 of many, assuming that all other ranks have the same values.

What a rank of a data-parallel job allocates and computes does not depend on the other ranks' values, so that one
process can walk through a job of sixteen cards. Collectives are counted, because they take time, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.futures import Future

BACKEND = "npukit_alone"
STEERING_BYTES = 4096
OnCollective = Callable[[str, float, list[Tensor]], None]  # name, bytes that one rank sends, tensors


def install(on_collective: OnCollective) -> None:
    """Make process groups of any backend and size from this process alone."""
    make_group = dist.init_process_group
    make_another = dist.new_group

    def create(_store: Any, rank: int, size: int, _timeout: Any) -> Alone:
        return Alone(rank, size, on_collective)

    def init_process_group(*_args: Any, **kwargs: Any) -> None:
        rank, size = (int(os.environ.get(name, value)) for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")))
        make_group(BACKEND, store=torch._C._distributed_c10d.HashStore(), rank=rank, world_size=size)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return make_another(*args, **{**kwargs, "backend": None, "pg_options": None})

    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "npu"])
    for module in (dist, distributed_c10d):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.new_group = new_group  # type: ignore[attr-defined]


def _done(result: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(result)
    make: Any = torch._C._distributed_c10d
    return make._create_work_from_future(future)


def _copy(target: Tensor, source: Tensor) -> None:
    """Copy small tensors through the host: sizes and flags control programs. A simulated card moves nothing else."""
    values = source.detach().reshape(-1)
    target.detach().view(-1).copy_(values.cpu() if values.nbytes <= STEERING_BYTES else values)


_Group: Any = dist.ProcessGroup  # its methods' names and arguments differ between torch versions


class Alone(_Group):  # type: ignore[misc]
    """A process group whose other members mirror this one."""

    def __init__(self, rank: int, size: int, on_collective: OnCollective) -> None:
        super().__init__(rank, size)
        self._place, self._members, self._on_collective = rank, size, on_collective

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._members

    @property
    def group_name(self) -> str:
        return distributed_c10d._world.pg_names[self]

    def getBackendName(self) -> str:
        return BACKEND

    def _count(self, name: str, tensors: list[Tensor], rounds: float) -> None:
        """In a ring, each rank sends all but one part of the data per round."""
        total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._on_collective(name, rounds * total * (self._members - 1) / max(1, self._members), tensors)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._count("all_reduce", tensors, 2)
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._count("reduce", tensors, 1)
        return _done(tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        self._count("broadcast", tensors, 1)
        return _done(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        self._count("all_gather", outputs[0], 1)
        for target in outputs[0]:
            _copy(target, inputs[0])
        return _done(outputs)

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Any:
        self._count("all_gather", [output], 1)
        for part in output.detach().view(-1).chunk(self._members):
            _copy(part, source)
        return _done(output)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, source in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, source)
        return _done(outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        self._count("reduce_scatter", inputs[0], 1)
        _copy(outputs[0], inputs[0][self._place])
        return _done(outputs)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Any:
        self._count("reduce_scatter", [source], 1)
        _copy(output, source.detach().view(-1).chunk(self._members)[self._place])
        return _done(output)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, source in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, source)
        return _done(outputs)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        self._count("all_to_all", inputs, 1)
        return _done(outputs)

    def all_to_all_single(
        self, output: Tensor, source: Tensor, output_sizes: Any = None, input_sizes: Any = None, opts: Any = None
    ) -> Any:
        self._count("all_to_all", [source], 1)
        return _done(output)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        self._count("gather", inputs, 1)
        for target in outputs[0] if outputs else []:
            _copy(target, inputs[0])
        return _done(outputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        self._count("scatter", outputs, 1)
        if inputs:
            _copy(outputs[0], inputs[0][self._place])
        return _done(outputs)

    def send(self, tensors: list[Tensor], *_: Any) -> Any:
        self._on_collective("send", float(sum(tensor.numel() * tensor.element_size() for tensor in tensors)), tensors)
        return _done(tensors)

    def recv(self, tensors: list[Tensor], *_: Any) -> Any:
        return _done(tensors)

    def barrier(self, opts: Any = None) -> Any:
        return _done([])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
