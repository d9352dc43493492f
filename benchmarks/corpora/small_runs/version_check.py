"""What torch_versions.py runs with every version, on two simulated NPUs: DDP against the CPU, then the HF Trainer.

Prints one line each: the largest difference of a loss from the CPU's, and how the Trainer did.
"""

from __future__ import annotations

import os
import tempfile

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401  (torch before 2.5 does not load it by itself)
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS, LENGTH, WIDTH, HEADS, WORDS = 10, 8, 32, 64, 4, 97


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        fed: torch.Tensor = x + self.feed(x)
        return fed


def losses(device: str, rank: int, ranks: int) -> list[float]:
    """The mean loss of each step; every rank has its part of the same rows."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Embedding(WORDS, WIDTH), Block(), Block(), nn.Linear(WIDTH, WORDS)).to(device)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1)
    values = []
    for _ in range(STEPS):
        tokens = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=data)[rank::ranks].to(device)
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        if ranks > 1:
            dist.all_reduce(mean)
        values.append(mean.item() / ranks)
    return values


def huggingface() -> str:
    """Five steps of transformers' Trainer on this rank's card."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        model = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2))
    except (ImportError, AttributeError, NameError) as error:
        return f"not run: {str(error).strip().splitlines()[0]}"
    rows = [{"input_ids": torch.arange(LENGTH) % WORDS, "labels": torch.arange(LENGTH) % WORDS}] * 8
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=5, per_device_train_batch_size=2, report_to=[], disable_tqdm=True
        )
        trained = Trainer(model=model, args=arguments, train_dataset=rows).train()
    return f"loss {trained.training_loss:.3f} on {next(model.parameters()).device.type}"


def main() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.npu.set_device(rank)
    dist.init_process_group("hccl")
    expected, actual = losses("cpu", 0, 1), losses(f"npu:{rank}", rank, ranks)
    if rank == 0:
        difference = max(abs(one - other) for one, other in zip(expected, actual, strict=True))
        print(f"DDP: {difference:.1e}", flush=True)
    loss = huggingface()
    if rank == 0:
        print(f"Trainer: {loss}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
