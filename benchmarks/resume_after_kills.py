"""Kill a training run again and again and resume it: it must end with the very weights of an undisturbed one.

    python benchmarks/resume_after_kills.py [--kills 20] [--ranks 1 2] [--device cpu|sim] [--parallel ddp] [--seed 0]

A rank kills itself with SIGKILL at a random moment, now in a step, now while a checkpoint is written, beside the
training or not; the job then starts again and goes on from what it finds. The job has all that makes this hard:
dropout, rows with random noise, steps of several batches, epochs that do not divide evenly, evaluation, Adam.
Weights are compared bit by bit.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

STEPS, SAVE_EVERY = 150, 4


class Killer:
    """Ends this process after a random number of batches: a moment later, or in the next checkpoint."""

    def __init__(self, seed: int | None, rank: int) -> None:
        chance = random.Random(seed)
        self._batches_left = chance.randrange(1, 4 * SAVE_EVERY) if seed is not None else 2**31
        self._in_checkpoint = rank == 0 and chance.random() < 0.3  # the first rank writes the model
        self._delay = chance.uniform(0, 0.03)
        self.async_save = chance.random() < 0.5

    def batch(self) -> None:
        self._batches_left -= 1
        if self._batches_left == 0 and not self._in_checkpoint:
            threading.Timer(self._delay, self._kill).start()

    def saving(self) -> None:
        if self._batches_left <= 0 and self._in_checkpoint:
            self._kill()

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def train(output: Path, killer: Killer, parallel: Any, **more: Any) -> None:
    """The job, as any user would write it."""
    import torch
    from torch import Tensor, nn
    from torch.utils.data import Dataset

    from npukit.train import Trainer, TrainOptions
    from npukit.train.trainer import save_weights

    class Noisy(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 62

        def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
            clean = torch.randn(8, generator=torch.Generator().manual_seed(row))
            return clean + 0.1 * torch.randn(8), clean.sum()

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        killer.batch()
        return nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1])

    def save(model: nn.Module, state: dict[str, Tensor], folder: Path) -> None:
        save_weights(model, state, folder)
        killer.saving()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    options = TrainOptions(
        output=output,
        epochs=100,
        max_steps=STEPS,
        batch_size=2,
        accumulation=2,
        learning_rate=1e-2,
        save_every=SAVE_EVERY,
        async_save=killer.async_save,
        eval_every=7,
        plot=False,
        workers=0,
        precision="fp32",
        parallel=parallel,
        **more,
    )
    Trainer(model, options, Noisy(), [Noisy()[row] for row in range(5)], loss=loss, save_model=save).train()


def attempt(output: Path, ranks: int, parallel: str, kill_seed: int | None) -> bool:
    """Run the job once, each rank a fork of this process, which has imported everything. Whether it ended well."""
    victim = random.Random(kill_seed).randrange(ranks)
    children, port = [], free_port()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            become_rank(rank, ranks, port, output.with_suffix(".log"))
            try:
                train(output, Killer(kill_seed if rank == victim else None, rank), parallel)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = []
    while children:
        child, status = os.wait()
        if child not in children:  # a compiler's, or the like
            continue
        children.remove(child)
        codes.append(os.waitstatus_to_exitcode(status))
        if status != 0:
            for other in children:
                os.kill(other, signal.SIGKILL)
    if any(codes) and kill_seed is None:
        sys.exit(output.with_suffix(".log").read_text())
    return not any(codes)


def become_rank(rank: int, ranks: int, port: int, log: Path) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if ranks > 1:
        here = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in here.items()}, MASTER_ADDR="localhost")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def weights(output: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(output / "model.safetensors")


def compare(folder: Path, ranks: int, parallel: str, kills: int, seed: int) -> bool:
    """Disturb a run and compare its end with an undisturbed one's."""
    import torch

    undisturbed, disturbed = folder / f"undisturbed-{ranks}", folder / f"disturbed-{ranks}"
    attempt(undisturbed, ranks, parallel, None)
    began, killed = time.monotonic(), 0
    while killed < kills and not attempt(disturbed, ranks, parallel, seed * 1000 + killed):
        killed += 1
    attempt(disturbed, ranks, parallel, None)
    expected, found = weights(undisturbed), weights(disturbed)
    same = all(torch.equal(expected[name], found[name]) for name in expected)
    log = disturbed.with_suffix(".log").read_text()
    resumed = log.count("resuming after step")
    print(
        f"{ranks} rank{'s' * (ranks > 1)}: killed {killed} times, went on {resumed} times, "
        f"{time.monotonic() - began:.0f} s; final weights {'bit-identical' if same else 'DIFFER'}",
        flush=True,
    )
    return same and killed == kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", choices=["cpu", "sim"], default="cpu")
    parser.add_argument("--parallel", default="ddp", help="ddp, or with --device sim: fsdp2, zero2, zero3")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if arguments.device == "sim":
        from npukit.simulate import activate

        activate(devices=max(arguments.ranks))
    # Every attempt is a fork that has these already; its optimizer would import dynamo.
    for module in ("torch._dynamo", "npukit.train.trainer"):
        importlib.import_module(module)

    with tempfile.TemporaryDirectory() as folder:
        results = [
            compare(Path(folder), ranks, arguments.parallel, arguments.kills, arguments.seed)
            for ranks in arguments.ranks
        ]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
