"""Train the classifier on one GPU, or on several with torchrun. Written for CUDA, as most scripts are."""

from __future__ import annotations

import argparse
import os
import random

import torch
import torch.distributed as dist
import yaml
from torch.cuda.amp import GradScaler, autocast
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from data import ARMS, loader
from model import Classifier, class_weights


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--amp", action="store_true", help="compute in half precision")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    with open(args.config) as file:
        config = yaml.safe_load(file)
    if not torch.cuda.is_available():
        raise SystemExit("This script needs a CUDA device.")
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    if world_size > 1:
        dist.init_process_group(backend="nccl")
    random.seed(config["seed"])
    torch.manual_seed(config["seed"])
    torch.cuda.manual_seed_all(config["seed"])
    torch.backends.cudnn.benchmark = True

    batches = loader(config["points"], config["batch"], config["seed"], world_size, rank)
    model = Classifier(ARMS).cuda()
    weights = class_weights(batches.dataset.tensors[1], ARMS)
    if world_size > 1:
        model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["learning_rate"])
    scaler = GradScaler(enabled=args.amp)

    step = 0
    model.train()
    while step < args.steps:
        if world_size > 1:
            batches.sampler.set_epoch(step)
        for x, y in batches:
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            with autocast(enabled=args.amp):
                loss = F.cross_entropy(model(x), y, weight=weights)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if rank == 0:
                print(f"step {step:3d}  loss {loss.item():.6f}")
            if step == args.steps:
                break

    torch.cuda.synchronize()
    if rank == 0:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB on {torch.cuda.get_device_name(0)}")
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
