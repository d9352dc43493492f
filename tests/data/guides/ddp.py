"""Two ranks of which the second is late in every step."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    loss = model(torch.randn(32, 256)).square().mean()
    if os.environ["RANK"] == "1":
        time.sleep(0.02)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
