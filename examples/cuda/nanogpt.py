"""Train a small GPT on characters: a script as people write them for GPUs, alone or with DDP over NCCL.

It says "cuda" in every way that such scripts do, and nothing in it knows of NPUs:
    npukit run --auto --device sim examples/cuda/nanogpt.py
    npukit run --auto --device sim --devices 2 examples/cuda/nanogpt.py
"""
# mypy: ignore-errors

import math
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size, block_size, width, heads, layers = 8, 32, 32, 2, 2
steps = int(os.environ.get("STEPS", "20"))
dtype = os.environ.get("DTYPE", "float32")
device = "cuda"

ddp = int(os.environ.get("RANK", -1)) != -1
rank, ranks = 0, 1
if ddp:
    dist.init_process_group(backend="nccl")
    assert dist.get_backend() == "nccl"
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
device_type = "cuda" if "cuda" in device else "cpu"
half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(dtype)
context = torch.amp.autocast(device_type=device_type, dtype=half) if half else nullcontext()

text = "the quick brown fox jumps over the lazy dog; " * 40
characters = sorted(set(text))
data = torch.tensor([characters.index(each) for each in text])


def get_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers for any number of ranks together; each takes its part."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=generator).chunk(ranks)[rank]
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    if device_type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, heads, c // heads).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(characters), width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, len(characters), bias=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], dtype=torch.long, device=idx.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.lm_head(self.ln_f(x)).flatten(0, 1), targets.flatten())


model = GPT()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), fused=device_type == "cuda")
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
if ddp:
    model = DDP(model, device_ids=[int(os.environ["LOCAL_RANK"])])
started = time.time()
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / steps))
    x, y = get_batch(step)
    with context:
        loss = model(x, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    mean = loss.detach().clone()
    if ddp:
        dist.all_reduce(mean)
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1} loss {mean.item() / ranks:.5f}", flush=True)
if rank == 0 and device_type == "cuda":
    memory = torch.cuda.max_memory_allocated() >> 10
    print(f"{memory} KiB on {torch.cuda.get_device_name()}, {time.time() - started:.1f} s")
if ddp:
    dist.destroy_process_group()
