"""Train a tiny GPT-2 on Ascend NPUs with DDP over hccl.

An ordinary torch_npu script: run it with torchrun on a machine with NPUs, or with

    npukit run --device sim --devices 2 examples/gpt2/train.py

on any other. The text is made up on the spot, so there is nothing to download.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

ALPHABET = "abcdefghijklmnopqrstuvwxyz .\n"
END = ALPHABET.index("\n")
SUBJECTS = ["the cat", "a small robot", "my neighbour", "the old sailor", "every child"]
VERBS = ["paints", "finds", "carries", "follows", "draws", "loses"]
OBJECTS = ["a red house", "the long road", "two quiet birds", "an open door", "the last letter"]


def made_up_text(sentences: int, seed: int) -> str:
    """Sentences that a small model can learn to write."""
    pick = random.Random(seed).choice
    return "".join(f"{pick(SUBJECTS)} {pick(VERBS)} {pick(OBJECTS)}.\n" for _ in range(sentences))


def encode(text: str) -> list[int]:
    return [ALPHABET.index(letter) for letter in text]


def decode(tokens: list[int]) -> str:
    return "".join(ALPHABET[token] for token in tokens)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch", type=int, default=16, help="sequences per device")
    parser.add_argument("--length", type=int, default=64, help="letters per sequence")
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.npu.set_device(local_rank)
    dist.init_process_group("hccl")
    torch.manual_seed(0)

    config = GPT2Config(
        vocab_size=len(ALPHABET),
        n_positions=options.length,
        n_embd=96,
        n_layer=3,
        n_head=4,
        bos_token_id=None,
        eos_token_id=END,
    )
    model = GPT2LMHeadModel(config).npu()
    parallel = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=2e-3)
    text = torch.tensor(encode(made_up_text(2000, seed=rank)))
    losses = []
    began = time.perf_counter()
    columns = (
        TextColumn("step {task.completed}/{task.total}  loss {task.fields[loss]:.3f}"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, disable=rank != 0) as progress:
        bar = progress.add_task("training", total=options.steps, loss=float("nan"))
        for _ in range(options.steps):
            starts = torch.randint(len(text) - options.length, (options.batch,)).tolist()
            batch = torch.stack([text[start : start + options.length] for start in starts]).npu()
            with torch.autocast("npu", dtype=torch.bfloat16):
                loss = parallel(input_ids=batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss := loss.detach(), op=dist.ReduceOp.AVG)
            losses.append(loss.item())
            progress.update(bar, advance=1, loss=losses[-1])
    seconds = time.perf_counter() - began

    if rank == 0:
        prompt = torch.tensor([encode("a small ")]).npu()
        model.eval()
        written = model.generate(prompt, max_length=options.length, do_sample=False, pad_token_id=END)
        result = {
            "devices": [torch.npu.get_device_name()] * dist.get_world_size(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "losses": losses,
            "tokens_per_second": options.steps * options.batch * options.length * dist.get_world_size() / seconds,
            "seconds": seconds,
            "peak_memory_mib": torch.npu.max_memory_allocated() / 2**20,
            "written": decode(written[0].tolist()),
        }
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "training.json").write_text(json.dumps(result, indent=2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
