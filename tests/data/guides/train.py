"""A training that takes a second, on any device, alone or as one of several ranks."""
# mypy: ignore-errors

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

kind = "npu" if hasattr(torch, "npu") and torch.npu.is_available() else "cpu"
ranks = int(os.environ.get("WORLD_SIZE", "1"))
device = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "npu" else torch.device(kind)
if ranks > 1:
    if kind == "npu":
        torch.npu.set_device(device)
    dist.init_process_group("hccl" if kind == "npu" else "gloo")
torch.manual_seed(0)
model: nn.Module = nn.Linear(8, 4).to(device)
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 40 if "--epochs" in sys.argv else 20
for step in range(steps):
    loss = nn.functional.mse_loss(model(torch.randn(16, 8).to(device)), torch.zeros(16, 4, device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if int(os.environ.get("RANK", "0")) == 0 and step % 10 == 9:
        print(f"step {step + 1} loss {loss.item():.4f}")
if ranks > 1:
    dist.destroy_process_group()
