"""Training loops that are slow for a known reason: does `npukit advise` name that reason first or second?

Each loop is recorded as `npukit profile` does it, and judged. The clean loop must get no finding above 3% of the step.

    python -m benchmarks advise_planted [--device cpu|cuda] [--only NAME] [--keep FOLDER]
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from npukit.performance.advise.advise import Advised, judge
from npukit.performance.profile import Settings
from npukit.performance.read import read_profiles
from npukit.performance.recording.recorder import ProfileRecorder

FIRST, LAST = 4, 7
CLEAN_LIMIT = 3.0  # percent of the step


@dataclass
class Job:
    """A clean training loop; what is planted changes parts of it."""

    device: str
    width: int = 0
    rows: int = 0
    layers: int = 6
    dtype: torch.dtype = torch.float32
    optimizer: dict[str, Any] = field(default_factory=lambda: {"fused": True})
    model: nn.Module | None = None
    batch: Callable[[int], Tensor] | None = None  # makes the batch of a step
    each_step: Callable[[Tensor, int], None] = lambda loss, step: None

    def __post_init__(self) -> None:
        on_gpu = self.device == "cuda"
        self.width, self.rows = (4096, 8192) if on_gpu else (512, 256)
        self.dtype = torch.bfloat16 if on_gpu else torch.float32

    def run(self) -> None:
        torch.manual_seed(0)
        model = (self.model or stack(self.width, self.layers)).to(self.device, self.dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, **self.optimizer)
        fixed = torch.randn(self.rows, self.width, device=self.device, dtype=self.dtype)
        for step in range(1, LAST + 2):
            batch = self.batch(step) if self.batch else fixed
            loss = model(batch).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.each_step(loss, step)


def stack(width: int, layers: int, between: type[nn.Module] = nn.GELU) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(width, width), between())))


class Slow(Dataset[Tensor]):
    """Rows that take a while to make."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(self.job.width).sort().values.cumsum(0)


class RoundTrip(nn.Module):
    """To another type and back, in every layer."""

    def forward(self, x: Tensor) -> Tensor:
        other = torch.float64 if x.dtype is torch.float32 else torch.float32
        for _ in range(4):
            x = x.to(other).to(x.dtype)
        return F.gelu(x)


class Attention(nn.Module):
    """Attention written out."""

    def __init__(self, width: int, heads: int = 12) -> None:
        super().__init__()
        self.project, self.heads = nn.Linear(width, 3 * width), heads

    def forward(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        q, k, v = self.project(x).view(8, rows // 8, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        mixed: Tensor = scores.softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(rows, width)


def clean(job: Job) -> None:
    job.run()


def loader_without_workers(job: Job) -> None:
    rows = iter(DataLoader(Slow(job), batch_size=256))
    job.batch = lambda step: next(rows).to(job.device, job.dtype)
    job.run()


def casts(job: Job) -> None:
    job.model = stack(job.width, job.layers, RoundTrip)
    job.run()


def varying_shapes(job: Job) -> None:
    job.batch = lambda step: torch.randn(job.rows + 37 * (step * 7 % 11), job.width, device=job.device, dtype=job.dtype)
    job.run()


def garbage_collection(job: Job) -> None:
    junk = [[number] for number in range(500_000)]

    def each(loss: Tensor, step: int) -> None:
        gc.collect()

    job.each_step = each
    job.run()
    del junk


def unfused_optimizer(job: Job) -> None:
    job.optimizer = {"foreach": False, "fused": False}
    job.rows //= 16
    job.model = nn.Sequential(stack(job.width, 1), *(nn.LayerNorm(job.width) for _ in range(100)))
    job.run()


def many_small_operators(job: Job) -> None:
    small = torch.zeros(4, device=job.device)

    def each(loss: Tensor, step: int) -> None:
        for _ in range(1500):
            small.add_(1)

    job.layers, job.rows, job.each_step = 1, job.rows // 8, each
    job.run()


def attention_written_out(job: Job) -> None:
    job.width, job.rows = (1536, 8192) if job.device == "cuda" else (192, 512)
    job.model = nn.Sequential(*(Attention(job.width) for _ in range(3)))
    job.run()


def item_in_the_loop(job: Job) -> None:
    def each(loss: Tensor, step: int) -> None:
        for _ in range(40):
            (loss * 2 + 1).item()

    job.rows, job.each_step = job.rows // 2, each
    job.run()


def synchronize_in_the_loop(job: Job) -> None:
    class Waits(nn.GELU):
        def forward(self, x: Tensor) -> Tensor:
            torch.cuda.synchronize()
            return super().forward(x)

    job.rows, job.model = job.rows // 2, stack(job.width, 12, Waits)
    job.run()


def pageable_copies(job: Job) -> None:
    rows = torch.randn(job.rows, job.width)
    job.batch = lambda step: rows.to(job.device).to(job.dtype)
    job.run()


def through_the_host(job: Job) -> None:
    class ViaHost(nn.GELU):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x.detach().cpu().to(x.device)

    job.model = stack(job.width, job.layers, ViaHost)
    job.run()


def float32_products(job: Job) -> None:
    job.dtype = torch.float32
    job.run()


def sizes_off_the_tile(job: Job) -> None:
    odd = [nn.Linear(job.width, 4099), nn.Linear(4099, job.width)]
    job.model = nn.Sequential(stack(job.width, 2), *odd, *(nn.Linear(job.width, 4097), nn.Linear(4097, job.width)))
    job.run()


def empty_cache_in_the_loop(job: Job) -> None:
    job.each_step = lambda loss, step: torch.cuda.empty_cache()
    job.rows //= 8
    job.run()


def skinny_products(job: Job) -> None:
    job.rows = 16
    job.model = stack(8192, 16)
    job.width = 8192
    job.run()


PLANTED: dict[Callable[[Job], None], tuple[str, ...]] = {
    clean: (),
    loader_without_workers: ("NPK803",),
    casts: ("NPK814",),
    varying_shapes: ("NPK815",),
    garbage_collection: ("NPK804",),
    unfused_optimizer: ("NPK816",),
    many_small_operators: ("NPK801",),
    attention_written_out: ("NPK817",),
}
ON_CUDA: dict[Callable[[Job], None], tuple[str, ...]] = {
    item_in_the_loop: ("NPK802",),
    synchronize_in_the_loop: ("NPK802",),
    pageable_copies: ("NPK811",),
    through_the_host: ("NPK811", "NPK802"),
    float32_products: ("NPK822",),
    sizes_off_the_tile: ("NPK820",),
    empty_cache_in_the_loop: ("NPK805",),
    skinny_products: ("NPK821",),
}
RANKS = {"slow_rank": ("NPK831",), "small_all_reduces": ("NPK833",), "uneven_batches": ("NPK835", "NPK831")}


def of_ranks(rank: int, folder: str) -> None:
    """Two ranks on the CPU, one loop after the other."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    os.environ["NPUKIT_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in RANKS:
        recorder = ProfileRecorder(Settings(FIRST, LAST, 1, str(Path(folder) / name)))
        recorder.install()
        with contextlib.redirect_stderr(io.StringIO()):
            one_of_ranks(name, rank)
            recorder.close()
    dist.destroy_process_group()


def one_of_ranks(name: str, rank: int) -> None:
    torch.manual_seed(rank)
    model = nn.parallel.DistributedDataParallel(stack(384, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(512 if name == "uneven_batches" and rank else 128, 384)
    for _ in range(LAST + 1):
        if name == "slow_rank" and rank:
            time.sleep(0.1)
        model(batch).square().mean().backward()
        if name == "small_all_reduces":
            for _ in range(40):
                dist.all_reduce(torch.ones(16))
        optimizer.step()


def record(planted: Callable[[Job], None], device: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    recorder = ProfileRecorder(Settings(FIRST, LAST, 1, str(folder)))
    recorder.install()
    with contextlib.redirect_stderr(io.StringIO()):
        planted(Job(device))
        recorder.close()
    gc.collect()


def row(name: str, expected: tuple[str, ...], advised: Advised) -> bool:
    """Print what was found, and whether it is what was planted."""
    first = [f"{advice.finding.code} {advice.percent:.0f}%" for advice in advised.advice[:3]]
    codes = [advice.finding.code for advice in advised.advice[:2]]
    if expected:
        good = any(code in codes for code in expected)
    else:
        good = all(advice.percent <= CLEAN_LIMIT for advice in advised.advice)
    step = max(rank.step_ms for rank in advised.ranks)
    answer = f"{'yes' if good else 'NO':4} {', '.join(first)}"
    print(f"{name:32} {' or '.join(expected) or 'nothing':16} {step:8.1f} ms  {answer}", flush=True)
    return good


def main(
    device: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu",
    only: str = "",
    keep: Path | None = None,
) -> None:
    os.environ["NPUKIT_DEVICE"] = device
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    torch.set_num_threads(1)  # a busy machine measures itself otherwise
    began = time.perf_counter()
    folder = keep or Path(tempfile.mkdtemp())
    planted = {**PLANTED, **(ON_CUDA if device == "cuda" else {})}
    good = 0
    chosen = {program: codes for program, codes in planted.items() if only in program.__name__}
    print(f"{'planted':32} {'expected':16} {'step':>11}  {'found':4} first findings")
    for program, codes in chosen.items():
        record(program, device, folder / program.__name__)
        good += row(program.__name__, codes, judge(read_profiles([folder / program.__name__])))
    ranks = {name: codes for name, codes in RANKS.items() if not only}
    if ranks:
        for name in ranks:
            (folder / name).mkdir()
        mp.spawn(of_ranks, (str(folder),), nprocs=2)  # type: ignore[no-untyped-call]
    for name, codes in ranks.items():
        good += row(f"{name} (2 CPU ranks)", codes, judge(read_profiles([folder / name])))
    total = len(chosen) + len(ranks)
    print(f"{good} of {total} as planted, {device}, {time.perf_counter() - began:.0f} s")
    sys.exit(0 if good == total else 1)
