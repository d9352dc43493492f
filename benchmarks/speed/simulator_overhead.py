"""How much slower than plain CPU eager is the simulated NPU? One training step of a GPT-2, and one small operator.

    python -m benchmarks simulator_overhead [--rounds 5] [--layers 6] [--batch 8]

The step is the CPU's in fp32 on one side; on the other the simulated NPU's in fp32, and under autocast in bf16 and
fp16. All run in this one process, in turn, and are measured in CPU time: what else the machine does matters little.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping

from npukit.simulate import activate

activate()  # before torch is imported
import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

WIDTH, SEQUENCE = 384, 256
Run = Callable[[], object]


def training_step(layers: int, batch: int, device: str, dtype: torch.dtype = torch.float32) -> Run:
    """A closure that does one step of AdamW on a GPT-2, always on the same batch, under autocast to `dtype`."""
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_embd=WIDTH, n_head=WIDTH // 64, n_positions=SEQUENCE)
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(config.vocab_size, (batch, SEQUENCE), device=device)

    def step() -> float:
        with torch.autocast(device, dtype=dtype, enabled=dtype != torch.float32):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def small_op(device: str) -> Run:
    """A closure that adds two vectors of ten numbers a thousand times."""
    left, right = torch.randn(10, device=device), torch.randn(10, device=device)

    def add() -> None:
        for _ in range(1000):
            left + right

    return add


def medians(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each of these, run in turn; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(rounds + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if round_number > 0:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(of_run) for name, of_run in seconds.items()}


def main(rounds: int = 5, layers: int = 6, batch: int = 8) -> None:
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"GPT-2 {layers}x{WIDTH}, {batch}x{SEQUENCE} tokens, one training step (aim: at most 1.3 times)")
    steps = {"plain CPU eager, fp32": training_step(layers, batch, "cpu")}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        steps[f"simulated NPU, {name}"] = training_step(layers, batch, "npu", dtype)
    cpu, *simulated = medians(steps, rounds).items()
    print(f"  {cpu[0]} {cpu[1]:8.3f} s")
    for name, seconds in simulated:
        print(f"  {name}   {seconds:8.3f} s   {seconds / cpu[1]:.2f} times")
    print("adding ten numbers (aim: at most 4 times)")
    cpu_seconds, npu_seconds = medians({device: small_op(device) for device in ("cpu", "npu")}, 10 * rounds).values()
    print(f"  plain CPU eager {cpu_seconds * 1e3:7.2f} us")
    print(f"  simulated NPU   {npu_seconds * 1e3:7.2f} us   {npu_seconds / cpu_seconds:.2f} times")
