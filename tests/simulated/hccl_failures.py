"""One rank of a job in which rank 1 is killed; the argument says what the others do then."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

RANK = int(os.environ["RANK"])


def main() -> None:
    torch.npu.set_device(RANK)
    dist.init_process_group("hccl")
    tensor = torch.ones(4).npu()
    dist.all_reduce(tensor)
    torch.npu.synchronize()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(tensor)
    if sys.argv[1] == "nobody_synchronizes":
        time.sleep(60)
    torch.npu.synchronize()
    print("finished")


main()
