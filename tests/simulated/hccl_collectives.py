"""One rank of a job that tries every collective of torch.distributed over hccl and checks what it gives."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

from npukit.selftest.collectives import COLLECTIVES, RankJob

JOB = RankJob(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.device("npu", int(os.environ["RANK"])))
torch.npu.set_device(JOB.rank)
dist.init_process_group("hccl")
for collective in COLLECTIVES:
    if JOB.rank == 0:
        print(collective.name, flush=True)
    collective.run(JOB)
dist.destroy_process_group()
