"""A rank of a small DDP training: writes its weights after some steps; then rank 3 is killed, the others go on."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).npu())
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for step in range(10_000):
    if step == 5:
        weights = model.module.weight.flatten().tolist()
        Path(sys.argv[1], f"weights{rank}").write_text(" ".join(map(str, weights)))
        dist.barrier()
        if rank == 3:
            Path(sys.argv[1], "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).chunk(ranks)[rank].npu()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
