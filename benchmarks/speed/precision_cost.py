"""What recording costs: a training step of GPT-2 alone, with module statistics and with operator statistics.

    python -m benchmarks precision_cost [--layers 12] [--width 768] [--batch 8] [--length 1024] [--msprobe PYTHON]

On a GPU it is GPT-2 124M in bf16, by the clock; on a CPU a small one on one thread, in CPU time. Needs nothing but
torch and npukit's sources. PYTHON is that of an environment with torch and mindstudio-probe, which then does the same.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CUDA = torch.cuda.is_available()
clock = time.perf_counter if CUDA else time.process_time
Step = Callable[[], None]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(self.act(self.up(self.ln_2(x))))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    def __init__(self, layers: int, width: int, length: int, vocabulary: int = 50304) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h, self.ln_f = nn.Sequential(*(Block(width) for _ in range(layers))), nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.ln_f(self.h(x)))  # type: ignore[no-any-return]


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def peak(device: torch.device) -> float:
    return torch.accelerator.max_memory_allocated() / 2**30 if device.type != "cpu" else 0.0


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.device.type != "cpu"):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def with_npukit(folder: str, level: str, model: nn.Module, step: Step) -> tuple[Step, Step]:
    """The step as it is recorded, and what ends recording."""
    from npukit.precision import capture

    recorder = capture(folder, level=level)  # type: ignore[arg-type]
    recorder.start()
    return step, recorder.stop


def with_msprobe(folder: str, level: str, model: nn.Module, step: Step) -> tuple[Step, Step]:
    from msprobe.pytorch import PrecisionDebugger  # type: ignore[import-not-found]

    statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "statistics", "dump_path": f"{folder}/dump", "rank": [], "step": [], "statistics": statistics}
    file = Path(folder, "config")
    file.write_text(json.dumps({**config, "level": {"modules": "L0", "ops": "mix"}[level]}))
    debugger = PrecisionDebugger(config_path=str(file.rename(file.with_suffix(".json"))))

    def recorded() -> None:
        debugger.start(model)
        step()
        debugger.stop()
        debugger.step()

    return recorded, lambda: None


RECORDERS = {"npukit": with_npukit, "msprobe": with_msprobe}


def measure(arguments: Any, device: torch.device, level: str) -> tuple[float, float, float]:
    """Seconds a step, peak memory in GiB, and megabytes on disk a step."""
    torch.manual_seed(0)
    model = GPT2(arguments.layers, arguments.width, arguments.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
    tokens = torch.randint(0, 50304, (arguments.batch, arguments.length), device=device)
    for _ in range(2):
        step(model, optimizer, tokens)
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        plain = functools.partial(step, model, optimizer, tokens)
        run, stop = RECORDERS[arguments.tool](folder, level, model, plain) if level else (plain, lambda: None)
        run()  # tables of signs are made here
        times = []
        for _ in range(arguments.steps):
            synchronize(device)
            began = clock()
            run()
            synchronize(device)
            times.append(clock() - began)
        stop()
        written = sum(file.stat().st_size for file in Path(folder).rglob("*.json"))
    return min(times), peak(device), written / (arguments.steps + 1) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12 if CUDA else 2)
    parser.add_argument("--width", type=int, default=768 if CUDA else 128)
    parser.add_argument("--batch", type=int, default=8 if CUDA else 1)
    parser.add_argument("--length", type=int, default=1024 if CUDA else 128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tool", choices=RECORDERS, default="npukit")
    parser.add_argument("--levels", nargs="*", default=["modules", "ops"])
    parser.add_argument("--msprobe", metavar="PYTHON")
    arguments = parser.parse_args()
    device = torch.device("cuda" if CUDA else "cpu")
    if not CUDA:
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if CUDA else "CPU"
    print(f"{arguments.tool}, {name}, torch {torch.__version__}: {vars(arguments)}", flush=True)
    plain = 0.0
    titles = {"": "plain step", "modules": "module statistics", "ops": "operator statistics"}
    for level in ("", *arguments.levels):
        seconds, memory, disk = measure(arguments, device, level)
        plain = plain or seconds
        cost = f"{seconds * 1e3:8.1f} ms  {seconds / plain:5.2f} x"
        print(f"{titles[level]:<20} {cost}  {memory:6.2f} GiB peak  {disk:6.2f} MB a step", flush=True)
    if arguments.msprobe:
        shape = (f"--{key}={getattr(arguments, key)}" for key in ("layers", "width", "batch", "length", "steps"))
        command = [arguments.msprobe, __file__, "--tool=msprobe", *shape]
        for level in arguments.levels:  # it takes one configuration a process
            done = subprocess.run([*command, f"--levels={level}"], stdout=subprocess.PIPE, text=True, check=True)
            print(*(line for line in done.stdout.splitlines() if "[INFO]" not in line), sep="\n", flush=True)


if __name__ == "__main__":
    main()
