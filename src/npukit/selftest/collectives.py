"""Every collective of torch.distributed between the ranks of a job, with the expected result on each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from npukit.launch.abilities import abilities

COMMON = [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]  # on all backends
SIZES = [0, 1, 7, 4099, 100_003]  # empty, one element, odd sizes, more than a ring buffer of the simulated HCCL


@dataclass(frozen=True)
class RankJob:
    """What a rank knows about its job."""

    rank: int
    ranks: int
    device: torch.device

    @property
    def has_hccl(self) -> bool:
        return abilities(self.device).torch_npu

    @property
    def reducible(self) -> list[torch.dtype]:
        """The dtypes that the backend can reduce."""
        return [*COMMON, torch.int16] if self.has_hccl else COMMON

    @property
    def movable(self) -> list[torch.dtype]:
        """The dtypes that it can transfer."""
        more = [torch.int16, torch.uint16, torch.uint32, torch.uint64] if self.has_hccl else []
        return [*COMMON, torch.uint8, torch.bool, torch.float64, *more]


@dataclass(frozen=True)
class CollectiveCheck:
    """A check that all ranks of a job run together. It raises an AssertionError on a rank with a wrong result."""

    name: str
    run: Callable[[RankJob], None]
    needs: Literal["", "accelerator", "torch_npu"]

    def runs_on(self, device: torch.device) -> bool:
        """Whether the device's backend supports the operation: gloo lacks some, and some are specific to HCCL."""
        has = abilities(device)
        return {"": True, "accelerator": has.own_memory, "torch_npu": has.torch_npu}[self.needs]


COLLECTIVES: list[CollectiveCheck] = []


def collective(needs: Literal["", "accelerator", "torch_npu"] = "") -> Callable[[Callable[[RankJob], None]], None]:
    def add(run: Callable[[RankJob], None]) -> None:
        COLLECTIVES.append(CollectiveCheck(run.__name__, run, needs))

    return add


def values(rank: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The contribution of `rank`: small integers, so that sums are exact in every dtype."""
    numbers = (torch.arange(size) * 3 + rank * 5) % 7 - 2
    return (numbers.abs() if dtype == torch.bool or not dtype.is_signed else numbers).to(dtype)


def total(parts: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(parts)).sum(0)


def same(result: Tensor, expected: Tensor) -> None:
    assert result.dtype == expected.dtype and torch.equal(result.cpu(), expected), (result.cpu(), expected)


@collective()
def all_reduce(job: RankJob) -> None:
    operations: dict[Any, Callable[[Tensor], Tensor]] = {
        dist.ReduceOp.SUM: lambda all_values: all_values.sum(0),
        dist.ReduceOp.PRODUCT: lambda all_values: all_values.prod(0),
        dist.ReduceOp.MAX: lambda all_values: all_values.amax(0),
        dist.ReduceOp.MIN: lambda all_values: all_values.amin(0),
    }
    for dtype in job.reducible:
        for size in SIZES:
            everything = torch.stack([values(rank, size, dtype).double() for rank in range(job.ranks)])
            for operation, reference in operations.items():
                # Signs: their product fits into every dtype for any number of ranks.
                inputs = everything.sign() if operation == dist.ReduceOp.PRODUCT else everything
                tensor = inputs[job.rank].to(dtype).to(job.device)
                dist.all_reduce(tensor, operation)
                same(tensor, reference(inputs).to(dtype))
    if not abilities(job.device).own_memory:
        return  # gloo has no averages
    average = values(job.rank, 10).to(job.device)
    dist.all_reduce(average, dist.ReduceOp.AVG)
    torch.testing.assert_close(average.cpu(), torch.stack([values(rank, 10) for rank in range(job.ranks)]).mean(0))


@collective(needs="torch_npu")
def half_precision_is_summed_in_single_and_rounded_once(job: RankJob) -> None:
    for dtype, large in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):
        tensor = torch.full((5000,), large if job.rank == 0 else 0.75, dtype=dtype).to(job.device)
        dist.all_reduce(tensor)
        same(tensor, torch.full((5000,), large + 0.75 * (job.ranks - 1)).to(dtype))


@collective()
def every_rank_gets_the_same_bits(job: RankJob) -> None:
    torch.manual_seed(job.rank)
    for size in (1000, 300_000):
        tensor = torch.randn(size).to(job.device)
        dist.all_reduce(tensor)
        gathered = torch.empty(job.ranks * size).to(job.device)
        dist.all_gather_into_tensor(gathered, tensor)
        for part in gathered.chunk(job.ranks):
            same(part, tensor.cpu())


@collective(needs="torch_npu")
def nan_wins(job: RankJob) -> None:
    for operation in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        tensor = torch.tensor([float("nan") if job.rank == 1 else 1.0, float(job.rank)]).to(job.device)
        dist.all_reduce(tensor, operation)
        assert tensor[0].isnan().item() and tensor[1].item() == (job.ranks - 1 if operation == dist.ReduceOp.MAX else 0)


@collective()
def broadcast(job: RankJob) -> None:
    for dtype in job.movable:
        for size in SIZES:
            root = size % job.ranks
            tensor = values(job.rank, size, dtype).to(job.device)
            dist.broadcast(tensor, root)
            same(tensor, values(root, size, dtype))


@collective()
def reduce(job: RankJob) -> None:
    for root in range(job.ranks):
        tensor = values(job.rank, 70_000).to(job.device)
        dist.reduce(tensor, root)
        if root == job.rank:
            same(tensor, total(values(rank, 70_000) for rank in range(job.ranks)))


@collective()
def all_gather(job: RankJob) -> None:
    for dtype in job.movable:
        for size in SIZES:
            own, expected = (
                values(job.rank, size, dtype).to(job.device),
                [values(rank, size, dtype) for rank in range(job.ranks)],
            )
            into = torch.zeros(job.ranks * size, dtype=dtype).to(job.device)
            dist.all_gather_into_tensor(into, own)
            same(into, torch.cat(expected))
            parts = [torch.zeros(size, dtype=dtype).to(job.device) for _ in range(job.ranks)]
            dist.all_gather(parts, own)
            for part, right in zip(parts, expected, strict=True):
                same(part, right)
    whole = torch.zeros(job.ranks * 9).to(job.device)
    mine = whole[job.rank * 9 : (job.rank + 1) * 9]
    mine.copy_(values(job.rank, 9))
    dist.all_gather_into_tensor(whole, mine)  # in place
    same(whole, torch.cat([values(rank, 9) for rank in range(job.ranks)]))


@collective(needs="accelerator")
def all_gather_of_uneven_parts(job: RankJob) -> None:
    parts = [torch.zeros(rank * 1000 + 3).to(job.device) for rank in range(job.ranks)]
    dist.all_gather(parts, values(job.rank, job.rank * 1000 + 3).to(job.device))
    for rank, part in enumerate(parts):
        same(part, values(rank, rank * 1000 + 3))


@collective(needs="accelerator")
def reduce_scatter(job: RankJob) -> None:
    for dtype in (torch.int32, torch.float16, torch.float32):
        for size in SIZES:
            summed = total(values(rank, job.ranks * size, dtype).float() for rank in range(job.ranks)).to(dtype)
            expected, own = (
                summed[job.rank * size : (job.rank + 1) * size],
                values(job.rank, job.ranks * size, dtype).to(job.device),
            )
            out = torch.zeros(size, dtype=dtype).to(job.device)
            dist.reduce_scatter_tensor(out, own)
            same(out, expected)
            out.zero_()
            dist.reduce_scatter(
                out, [part.contiguous() for part in torch.split(own, size or 1)] if size else [out] * job.ranks
            )
            same(out, expected)
    whole = values(job.rank, job.ranks * 9).to(job.device)
    dist.reduce_scatter_tensor(whole[job.rank * 9 : (job.rank + 1) * 9], whole)  # in place
    same(
        whole[job.rank * 9 : (job.rank + 1) * 9],
        total(values(rank, job.ranks * 9) for rank in range(job.ranks))[job.rank * 9 :][:9],
    )


@collective(needs="accelerator")
def reduce_scatter_of_uneven_parts(job: RankJob) -> None:
    inputs = [values(job.rank + part, part * 500 + 1).to(job.device) for part in range(job.ranks)]
    out = torch.zeros(job.rank * 500 + 1).to(job.device)
    dist.reduce_scatter(out, inputs)
    same(out, total(values(rank + job.rank, job.rank * 500 + 1) for rank in range(job.ranks)))


@collective(needs="accelerator")
def all_to_all(job: RankJob) -> None:
    for size in (1, 50_000):
        own, out = values(job.rank, job.ranks * size).to(job.device), torch.zeros(job.ranks * size).to(job.device)
        dist.all_to_all_single(out, own)
        expected = torch.cat([values(rank, job.ranks * size)[job.rank * size :][:size] for rank in range(job.ranks)])
        same(out, expected)
        parts = [torch.zeros(size).to(job.device) for _ in range(job.ranks)]
        dist.all_to_all(parts, list(own.chunk(job.ranks)))
        same(torch.cat(parts), expected)
    sizes = [[(sender * 3 + receiver) % 4 * 11 for receiver in range(job.ranks)] for sender in range(job.ranks)]
    receives = [sizes[sender][job.rank] for sender in range(job.ranks)]
    out = torch.zeros(sum(receives)).to(job.device)
    dist.all_to_all_single(out, values(job.rank, sum(sizes[job.rank])).to(job.device), receives, sizes[job.rank])
    sent = [torch.split(values(sender, sum(sizes[sender])), sizes[sender])[job.rank] for sender in range(job.ranks)]
    same(out, torch.cat(sent))


@collective()
def scatter_and_gather(job: RankJob) -> None:
    for root in range(job.ranks):
        out = torch.zeros(1000).to(job.device)
        dist.scatter(
            out, [values(part, 1000).to(job.device) for part in range(job.ranks)] if root == job.rank else None, root
        )
        same(out, values(job.rank, 1000))
        parts = [torch.zeros(1000).to(job.device) for _ in range(job.ranks)] if root == job.rank else None
        dist.gather(out, parts, root)
        for rank, part in enumerate(parts or []):
            same(part, values(rank, 1000))


@collective()
def send_and_receive(job: RankJob) -> None:
    for size in (1, 200_000):
        tensor = values(job.rank, size).to(job.device)
        if job.rank == 0:
            for peer in range(1, job.ranks):
                dist.send(tensor, peer)
                dist.recv(tensor, peer)
                same(tensor, values(peer, size))
                tensor = values(job.rank, size).to(job.device)
        else:
            received = torch.zeros(size).to(job.device)
            dist.recv(received, 0)
            same(received, values(0, size))
            dist.send(tensor, 0)


@collective()
def batch_of_sends_and_receives(job: RankJob) -> None:
    size = 200_000  # more than a ring buffer, in both directions at once
    after, before = (job.rank + 1) % job.ranks, (job.rank - 1) % job.ranks
    received = [torch.zeros(size).to(job.device), torch.zeros(3).to(job.device)]
    operations = [
        dist.P2POp(dist.isend, values(job.rank, size).to(job.device), after),
        dist.P2POp(dist.isend, values(job.rank, 3).to(job.device), after),
        dist.P2POp(dist.irecv, received[0], before),
        dist.P2POp(dist.irecv, received[1], before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received[0], values(before, size))
    same(received[1], values(before, 3))


@collective(needs="accelerator")
def coalescing(job: RankJob) -> None:
    tensors = [values(job.rank, size).to(job.device) for size in (5, 70_000)]
    with dist.distributed_c10d._coalescing_manager(device=job.device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, total(values(rank, tensor.numel()) for rank in range(job.ranks)))


@collective()
def asynchronous_work(job: RankJob) -> None:
    tensors = [values(job.rank, 100_000).to(job.device) for _ in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    expected = total(values(rank, 100_000) for rank in range(job.ranks))
    for tensor in tensors:
        same(tensor * 2, expected * 2)
    assert all(work.is_completed() for work in works)


@collective()
def sub_groups(job: RankJob) -> None:
    groups = [dist.new_group([0, rank]) for rank in range(1, job.ranks)]
    for peer, group in enumerate(groups, start=1):
        if job.rank in (0, peer):
            tensor = values(job.rank, 20_000).to(job.device)
            dist.all_reduce(tensor, group=group)
            same(tensor, values(0, 20_000) + values(peer, 20_000))
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)


@collective()
def objects(job: RankJob) -> None:
    gathered: list[object] = [None] * job.ranks
    dist.all_gather_object(gathered, {"rank": job.rank, "text": "x" * job.rank * 1000})
    assert gathered == [{"rank": rank, "text": "x" * rank * 1000} for rank in range(job.ranks)]
    shared = [job.rank, "from", job.rank]
    dist.broadcast_object_list(shared, 1)
    assert shared == [1, "from", 1]


@collective(needs="torch_npu")
def products_with_a_collective(job: RankJob) -> None:
    import torch_npu

    dist.barrier()  # creates the communicator
    world: Any = dist.group.WORLD
    name = world._get_backend(job.device).get_hccl_comm_name(job.rank)
    rows = [values(rank, 4 * job.ranks * 6).view(4 * job.ranks, 6).half() for rank in range(job.ranks)]
    columns = [values(rank + 1, 6 * 3).view(6, 3).half() for rank in range(job.ranks)]
    mine = rows[job.rank].to(job.device), columns[job.rank].to(job.device), name
    product, gathered = torch_npu.npu_all_gather_base_mm(*mine, job.ranks)
    same(gathered, torch.cat(rows))
    same(product, torch.cat(rows) @ columns[job.rank])
    summed = total(one @ other for one, other in zip(rows, columns, strict=True))
    same(torch_npu.npu_mm_all_reduce_base(*mine), summed)
    same(torch_npu.npu_mm_reduce_scatter_base(*mine, job.ranks), summed.chunk(job.ranks)[job.rank])
    try:
        torch_npu.npu_mm_all_reduce_base(*mine[:2], "another")
    except RuntimeError as error:
        assert "'another'" in str(error)
    else:
        raise AssertionError("a communicator that is not there")


@collective()
def barrier(job: RankJob) -> None:
    for _ in range(20):
        dist.barrier()
