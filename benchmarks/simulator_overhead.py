"""How much slower than plain CPU eager is the simulated NPU? One training step of a GPT-2, and one small op.

    npukit run --device sim benchmarks/simulator_overhead.py

Both sides run in this one process, alternately, so that they share whatever else the machine is doing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from transformers import GPT2Config, GPT2LMHeadModel

LAYERS, WIDTH, SEQUENCE, BATCH = 6, 384, 256, 8


def training_step(device: str) -> Callable[[], None]:
    """A closure that does one step of AdamW on a GPT-2, always on the same batch."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=LAYERS, n_embd=WIDTH, n_head=WIDTH // 64, n_positions=SEQUENCE)
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (BATCH, SEQUENCE), device=device)

    def step() -> None:
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def small_op(device: str) -> Callable[[], None]:
    """A closure that adds two vectors of ten numbers a thousand times."""
    left, right = torch.randn(10, device=device), torch.randn(10, device=device)

    def add() -> None:
        for _ in range(1000):
            left + right

    return add


def ratio(make: Callable[[str], Callable[[], None]], rounds: int) -> tuple[float, float, float]:
    """Median seconds on the CPU and on the simulated NPU, and how many times the one the other is."""
    runs = {device: make(device) for device in ("cpu", "npu")}
    seconds: dict[str, list[float]] = {device: [] for device in runs}
    for round_number in range(rounds + 1):
        for device, run in runs.items():
            start = time.perf_counter()
            run()
            if round_number > 0:  # the first one warms up
                seconds[device].append(time.perf_counter() - start)
    cpu, npu = (statistics.median(seconds[device]) for device in ("cpu", "npu"))
    return cpu, npu, npu / cpu


def main() -> None:
    print(f"GPT-2 {LAYERS}x{WIDTH}, {BATCH}x{SEQUENCE} tokens, one training step (aim: at most 1.25 times)")
    cpu, npu, times = ratio(training_step, rounds=7)
    print(f"  plain CPU eager {cpu:8.3f} s   simulated NPU {npu:8.3f} s   {times:.2f} times")
    print("adding ten numbers (aim: at most 4 times)")
    cpu, npu, times = ratio(small_op, rounds=30)
    print(f"  plain CPU eager {cpu * 1e3:7.2f} us  simulated NPU {npu * 1e3:7.2f} us  {times:.2f} times")


if __name__ == "__main__":
    main()
