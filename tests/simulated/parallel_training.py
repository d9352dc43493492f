"""Rank script: 8 steps by DDP, FSDP2 on a DeviceMesh, and accelerate; each must end where one process ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

STEPS, ROWS, LENGTH, VOCABULARY = 8, 8, 16, 64
Step = Callable[[nn.Module, Tensor], None]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=LENGTH,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).npu()


def batches() -> Iterable[Tensor]:
    """The same global batches on every rank."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(STEPS):
        yield torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)


def train(model: nn.Module, rank: int = 0, world: int = 1, accelerator: Accelerator | None = None) -> None:
    # Not Adam: where a gradient is nearly zero it turns rounding into steps of full size.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if accelerator:
        model, optimizer = accelerator.prepare(model, optimizer)
    for batch in batches():
        mine = batch[rank * ROWS // world : (rank + 1) * ROWS // world].npu()
        loss = model(input_ids=mine, labels=mine).loss
        accelerator.backward(loss) if accelerator else loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def difference(model: nn.Module, reference: nn.Module) -> float:
    """The largest difference of any weight, after gathering what is sharded."""
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    gathered = [(w.full_tensor() if isinstance(w, DTensor) else w, other) for w, other in pairs]
    return max((w - other).abs().max().item() for w, other in gathered)


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("hccl")
    reference = make_model()
    train(reference)

    ddp = make_model()
    train(DistributedDataParallel(ddp, device_ids=[torch.npu.current_device()]), rank, world)

    sharded = make_model()
    mesh = init_device_mesh("npu", (world,))
    for block in sharded.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    train(sharded, rank, world)

    hybrid = make_model()
    if world == 4:
        fully_shard(hybrid, mesh=init_device_mesh("npu", (2, 2), mesh_dim_names=("replicate", "shard")))
        train(hybrid, rank, world)
    else:
        train(hybrid)

    accelerated = make_model()
    train(accelerated, rank, world, Accelerator())

    for name, model in {"DDP": ddp, "FSDP2": sharded, "HSDP": hybrid, "accelerate": accelerated}.items():
        largest = difference(model, reference)
        assert largest < 1e-5, f"{name} is {largest} away from one process"
        if rank == 0:
            print(f"{name}: {largest:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
