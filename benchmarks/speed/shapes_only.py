"""Walk through a training step of a 7B model on simulated NPUs without computing it.

    python -m benchmarks shapes_only [--devices 1 8]

A Qwen2-7B-shaped LoRA model, bf16, activation checkpointing, 1,024 tokens: one 910B3, then FSDP2 on eight ranks.
Aim: under 60 s, under 2 GiB of host memory per rank. The peak is what torch.npu itself reports.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from npukit.facts.models import known_model

TOKENS = 1024


def step() -> None:
    """What each simulated process runs: an ordinary training step for NPUs."""
    import torch
    import torch.distributed as dist
    from peft import LoraConfig, get_peft_model
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM

    world = int(os.environ.get("WORLD_SIZE", 1))
    torch.npu.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    config = AutoConfig.for_model(**(known_model("Qwen2-7B") or {}), use_cache=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    if world > 1:
        dist.init_process_group("hccl")
        for layer in model.base_model.model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    model.to_empty(device="npu")
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    tokens = torch.randint(config.vocab_size, (1, TOKENS), device="npu")

    start = time.perf_counter()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    torch.npu.synchronize()
    seconds = time.perf_counter() - start

    if int(os.environ.get("RANK", 0)) == 0:
        peak, reserved = torch.npu.max_memory_allocated(), torch.npu.max_memory_reserved()
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"  peak of one card {peak / 2**30:.1f} GiB ({reserved / 2**30:.1f} reserved), ", end="")
        print(
            f"host memory of one rank {host / 2**20:.2f} GiB (aim: under 2), the step {seconds:.0f} s (aim: under 60)"
        )
    if world > 1:
        dist.destroy_process_group()


def main(devices: tuple[int, ...] = (1, 8)) -> None:
    for count in devices:
        print(f"Qwen2-7B shape, LoRA, {TOKENS} tokens, {count} simulated 910B3{', FSDP2' if count > 1 else ''}")
        command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--card", "910B3"]
        command += ["--devices", str(count), "--compute", "shapes", __file__]
        start = time.perf_counter()
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(
            f"  {time.perf_counter() - start:.0f} s for all of it, with the start of Python and the making of the model"
        )


if __name__ == "__main__":
    step()
