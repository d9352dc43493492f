"""One rank of a job that tries every collective of torch.distributed over hccl and checks what it gives."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch_npu
from torch import Tensor

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
OTHERS = [rank for rank in range(RANKS) if rank != RANK]
MOVABLE = [
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.uint16, torch.uint32, torch.uint64),
]
REDUCIBLE = [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32]
SIZES = [0, 1, 7, 4099, 100_003]  # nothing, one element, odd ones, more than a ring holds


def values(rank: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `rank` contributes: small integers, so that sums are exact in every type."""
    numbers = (torch.arange(size) * 3 + rank * 5) % 7 - 2
    return (numbers.abs() if dtype == torch.bool or not dtype.is_signed else numbers).to(dtype)


def same(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and torch.equal(found.cpu(), expected), (found.cpu(), expected)


def check_all_reduce() -> None:
    operations = {
        dist.ReduceOp.SUM: lambda all_values: all_values.sum(0),
        dist.ReduceOp.PRODUCT: lambda all_values: all_values.prod(0),
        dist.ReduceOp.MAX: lambda all_values: all_values.amax(0),
        dist.ReduceOp.MIN: lambda all_values: all_values.amin(0),
    }
    for dtype in REDUCIBLE:
        for size in SIZES:
            everything = torch.stack([values(rank, size, dtype).double() for rank in range(RANKS)])
            for operation, reference in operations.items():
                tensor = values(RANK, size, dtype).npu()
                dist.all_reduce(tensor, operation)
                same(tensor, reference(everything).to(dtype))
    average = values(RANK, 10).npu()
    dist.all_reduce(average, dist.ReduceOp.AVG)
    torch.testing.assert_close(average.cpu(), torch.stack([values(rank, 10) for rank in range(RANKS)]).mean(0))


def check_half_precision_is_summed_in_single_and_rounded_once() -> None:
    for dtype, large in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):
        tensor = torch.full((5000,), large if RANK == 0 else 0.75, dtype=dtype).npu()
        dist.all_reduce(tensor)
        same(tensor, torch.full((5000,), large + 0.75 * (RANKS - 1)).to(dtype))


def check_every_rank_gets_the_same_bits() -> None:
    torch.manual_seed(RANK)
    for size in (1000, 300_000):
        tensor = torch.randn(size).npu()
        dist.all_reduce(tensor)
        gathered = torch.empty(RANKS * size).npu()
        dist.all_gather_into_tensor(gathered, tensor)
        for part in gathered.chunk(RANKS):
            same(part, tensor.cpu())


def check_nan_wins() -> None:
    for operation in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        tensor = torch.tensor([float("nan") if RANK == 1 else 1.0, float(RANK)]).npu()
        dist.all_reduce(tensor, operation)
        assert tensor[0].isnan().item() and tensor[1].item() == (RANKS - 1 if operation == dist.ReduceOp.MAX else 0)


def check_broadcast() -> None:
    for dtype in MOVABLE:
        for size in SIZES:
            root = size % RANKS
            tensor = values(RANK, size, dtype).npu()
            dist.broadcast(tensor, root)
            same(tensor, values(root, size, dtype))


def check_reduce() -> None:
    for root in range(RANKS):
        tensor = values(RANK, 70_000).npu()
        dist.reduce(tensor, root)
        if root == RANK:
            same(tensor, sum(values(rank, 70_000) for rank in range(RANKS)))


def check_all_gather() -> None:
    for dtype in MOVABLE:
        for size in SIZES:
            own, expected = values(RANK, size, dtype).npu(), [values(rank, size, dtype) for rank in range(RANKS)]
            into = torch.zeros(RANKS * size, dtype=dtype).npu()
            dist.all_gather_into_tensor(into, own)
            same(into, torch.cat(expected))
            parts = [torch.zeros(size, dtype=dtype).npu() for _ in range(RANKS)]
            dist.all_gather(parts, own)
            for part, right in zip(parts, expected, strict=True):
                same(part, right)
    whole = torch.zeros(RANKS * 9).npu()
    mine = whole[RANK * 9 : (RANK + 1) * 9]
    mine.copy_(values(RANK, 9))
    dist.all_gather_into_tensor(whole, mine)  # in place
    same(whole, torch.cat([values(rank, 9) for rank in range(RANKS)]))


def check_all_gather_of_uneven_parts() -> None:
    parts = [torch.zeros(rank * 1000 + 3).npu() for rank in range(RANKS)]
    dist.all_gather(parts, values(RANK, RANK * 1000 + 3).npu())
    for rank, part in enumerate(parts):
        same(part, values(rank, rank * 1000 + 3))


def check_reduce_scatter() -> None:
    for dtype in (torch.int32, torch.float16, torch.float32):
        for size in SIZES:
            total = sum(values(rank, RANKS * size, dtype).float() for rank in range(RANKS)).to(dtype)
            expected, own = total[RANK * size : (RANK + 1) * size], values(RANK, RANKS * size, dtype).npu()
            out = torch.zeros(size, dtype=dtype).npu()
            dist.reduce_scatter_tensor(out, own)
            same(out, expected)
            out.zero_()
            dist.reduce_scatter(out, [part.contiguous() for part in own.split(size or 1)] if size else [out] * RANKS)
            same(out, expected)
    whole = values(RANK, RANKS * 9).npu()
    dist.reduce_scatter_tensor(whole[RANK * 9 : (RANK + 1) * 9], whole)  # in place
    same(whole[RANK * 9 : (RANK + 1) * 9], sum(values(rank, RANKS * 9) for rank in range(RANKS))[RANK * 9 :][:9])


def check_reduce_scatter_of_uneven_parts() -> None:
    inputs = [values(RANK + part, part * 500 + 1).npu() for part in range(RANKS)]
    out = torch.zeros(RANK * 500 + 1).npu()
    dist.reduce_scatter(out, inputs)
    same(out, sum(values(rank + RANK, RANK * 500 + 1) for rank in range(RANKS)))


def check_all_to_all() -> None:
    for size in (1, 50_000):
        own, out = values(RANK, RANKS * size).npu(), torch.zeros(RANKS * size).npu()
        dist.all_to_all_single(out, own)
        expected = torch.cat([values(rank, RANKS * size)[RANK * size :][:size] for rank in range(RANKS)])
        same(out, expected)
        parts = [torch.zeros(size).npu() for _ in range(RANKS)]
        dist.all_to_all(parts, list(own.chunk(RANKS)))
        same(torch.cat(parts), expected)
    sizes = [[(sender * 3 + receiver) % 4 * 11 for receiver in range(RANKS)] for sender in range(RANKS)]
    receives = [sizes[sender][RANK] for sender in range(RANKS)]
    out = torch.zeros(sum(receives)).npu()
    dist.all_to_all_single(out, values(RANK, sum(sizes[RANK])).npu(), receives, sizes[RANK])
    sent = [values(sender, sum(sizes[sender])).split(sizes[sender])[RANK] for sender in range(RANKS)]
    same(out, torch.cat(sent))


def check_scatter_and_gather() -> None:
    for root in range(RANKS):
        out = torch.zeros(1000).npu()
        dist.scatter(out, [values(part, 1000).npu() for part in range(RANKS)] if root == RANK else None, root)
        same(out, values(RANK, 1000))
        parts = [torch.zeros(1000).npu() for _ in range(RANKS)] if root == RANK else None
        dist.gather(out, parts, root)
        for rank, part in enumerate(parts or []):
            same(part, values(rank, 1000))


def check_send_and_receive() -> None:
    for size in (1, 200_000):
        tensor = values(RANK, size).npu()
        if RANK == 0:
            for peer in OTHERS:
                dist.send(tensor, peer)
                dist.recv(tensor, peer)
                same(tensor, values(peer, size))
                tensor = values(RANK, size).npu()
        else:
            received = torch.zeros(size).npu()
            dist.recv(received, 0)
            same(received, values(0, size))
            dist.send(tensor, 0)


def check_batch_of_sends_and_receives() -> None:
    size = 200_000  # more than a ring holds, in both directions at once
    after, before = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    received = [torch.zeros(size).npu(), torch.zeros(3).npu()]
    operations = [
        dist.P2POp(dist.isend, values(RANK, size).npu(), after),
        dist.P2POp(dist.isend, values(RANK, 3).npu(), after),
        dist.P2POp(dist.irecv, received[0], before),
        dist.P2POp(dist.irecv, received[1], before),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(received[0], values(before, size))
    same(received[1], values(before, 3))


def check_coalescing() -> None:
    tensors = [values(RANK, size).npu() for size in (5, 70_000)]
    with dist._coalescing_manager(device=torch.device("npu", RANK), async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, sum(values(rank, tensor.numel()) for rank in range(RANKS)))


def check_asynchronous_work() -> None:
    tensors = [values(RANK, 100_000).npu() for _ in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    total = sum(values(rank, 100_000) for rank in range(RANKS))
    for tensor in tensors:
        same(tensor * 2, total * 2)
    assert all(work.is_completed() for work in works)


def check_sub_groups() -> None:
    groups = [dist.new_group([0, rank]) for rank in range(1, RANKS)]
    for peer, group in enumerate(groups, start=1):
        if RANK in (0, peer):
            tensor = values(RANK, 20_000).npu()
            dist.all_reduce(tensor, group=group)
            same(tensor, values(0, 20_000) + values(peer, 20_000))
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)


def check_objects() -> None:
    found: list[object] = [None] * RANKS
    dist.all_gather_object(found, {"rank": RANK, "text": "x" * RANK * 1000})
    assert found == [{"rank": rank, "text": "x" * rank * 1000} for rank in range(RANKS)]
    shared = [RANK, "from", RANK]
    dist.broadcast_object_list(shared, 1)
    assert shared == [1, "from", 1]


def check_products_with_a_collective() -> None:
    dist.barrier()  # makes the communicator
    name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(RANK)
    rows = [values(rank, 4 * RANKS * 6).view(4 * RANKS, 6).half() for rank in range(RANKS)]
    columns = [values(rank + 1, 6 * 3).view(6, 3).half() for rank in range(RANKS)]
    mine = rows[RANK].npu(), columns[RANK].npu(), name
    product, gathered = torch_npu.npu_all_gather_base_mm(*mine, RANKS)
    same(gathered, torch.cat(rows))
    same(product, torch.cat(rows) @ columns[RANK])
    total = torch.stack([one @ other for one, other in zip(rows, columns, strict=True)]).sum(0)
    same(torch_npu.npu_mm_all_reduce_base(*mine), total)
    same(torch_npu.npu_mm_reduce_scatter_base(*mine, RANKS), total.chunk(RANKS)[RANK])
    try:
        torch_npu.npu_mm_all_reduce_base(*mine[:2], "another")
    except RuntimeError as error:
        assert "'another'" in str(error)
    else:
        raise AssertionError("a communicator that is not there")


def check_barrier() -> None:
    for _ in range(20):
        dist.barrier()


def main() -> None:
    torch.npu.set_device(RANK)
    dist.init_process_group("hccl")
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            if RANK == 0:
                print(name, flush=True)
            check()
    dist.destroy_process_group()


main()
