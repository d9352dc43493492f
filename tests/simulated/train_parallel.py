"""Rank script: train by each way of sharing the work; each is also resumed from the middle and must end the same.

train_parallel.py OUTPUT ACCUMULATION NAME...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from npukit.train import Trainer, TrainOptions


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, value: Tensor) -> Tensor:
        return value + self.down(torch.tanh(self.up(self.norm(value))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(()), persistent=False)  # as a norm's statistics: each rank's own

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            self.seen += tokens.sum()
        value = self.embed(tokens)
        for block in self.blocks:
            value = block(value)
        return self.head(self.frozen(value))


def next_token(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def make(output: Path, accumulation: int, parallel: str, **options: Any) -> Trainer:
    torch.manual_seed(0)
    rows = list(torch.randint(50, (45, 12), generator=torch.Generator().manual_seed(1)))
    chosen = TrainOptions(
        output=output,
        epochs=9,
        max_steps=8,  # more than an epoch: its last step has 5 rows
        batch_size=2,
        accumulation=accumulation,
        optimizer="sgd",  # Adam turns rounding into steps of full size where a gradient is nearly zero
        momentum=0.9,
        learning_rate=0.1,
        precision="fp32",
        parallel=parallel,
        save_every=3,
        save_total_limit=None,
        workers=0,
        plot=False,
        **options,
    )
    return Trainer(Model(), chosen, rows, rows[:7], loss=next_token)


def main() -> None:
    output, accumulation, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for name in names:
        if name == "zero3":
            check_that_no_device_holds_the_model(output)
        trainer = make(output / name, accumulation, name)
        exchanges = count_exchanges(trainer) if name == "ddp" and trainer.parallel.world_size > 1 else []
        trainer.train()
        assert len(exchanges) in (0, 8), f"{len(exchanges)} exchanges of gradients in 8 steps"
        seen = trainer.parallel.gather(float(trainer.parallel.module.seen))
        assert len(set(seen)) == 1, f"{name} evaluated with statistics that differ: {seen}"
        again = make(output / f"{name}-resumed", accumulation, name, resume=output / name / "checkpoint-3")
        again.train()
        if trainer.parallel.is_main:
            first, second = (load_file(output / run / "model.safetensors") for run in (name, f"{name}-resumed"))
            assert all(torch.equal(first[key], second[key]) for key in first), f"{name} ends elsewhere when resumed"
            print(f"trained by {name}")


def check_that_no_device_holds_the_model(output: Path) -> None:
    """Not even while the model is shared out."""
    zero = {"stage": 3, "reduce_bucket_size": 1000, "stage3_prefetch_bucket_size": 1000}
    frozen = [nn.Linear(512, 512, bias=False).requires_grad_(False) for _ in range(8)]
    whole = sum(part.weight.nbytes for part in frozen)
    file = output / f"small-buckets-{os.environ['RANK']}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"zero_optimization": zero}))
    chosen = TrainOptions(output=output / "shared-out", max_steps=1, batch_size=2, precision="fp32", parallel=file)
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    Trainer(nn.Sequential(*frozen, nn.Linear(512, 1)), chosen, torch.zeros(4, 512), loss=lambda *_: torch.zeros(()))
    held = torch.npu.max_memory_allocated() - before
    assert held < 0.8 * whole, f"{held} of {whole} bytes"


def count_exchanges(trainer: Trainer) -> list[int]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    exchanges: list[int] = []

    def count(state, bucket):  # DDP wants the annotations themselves, or none
        if bucket.is_last():
            exchanges.append(bucket.index())
        return allreduce_hook(None, bucket)

    trainer.parallel.model.register_comm_hook(None, count)
    return exchanges


if __name__ == "__main__":
    main()
