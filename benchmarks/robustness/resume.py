"""Kill training and inference again and again, and resume: the end must be that of an undisturbed run.

    python -m benchmarks resume kills [--kills 20] [--ranks 1 2] [--device cpu|sim] [--parallel ddp] [--task grpo|turns]
    python -m benchmarks resume faults [--runs 50] [--steps 200] [--seed 0]
    python -m benchmarks resume infer [--kills 20]

kills: a rank kills itself with SIGKILL at a random moment, in a step or while a checkpoint is written, in the
background or not; the job then starts again from its newest checkpoint. The job has all that makes this hard: dropout,
rows with random noise, gradient accumulation, epochs that do not divide evenly, evaluation, Adam. Weights are compared
bit by bit. With --task grpo it is a run of reinforcement learning, killed while it samples, rewards, learns or saves;
with --task turns its answers have several turns.

faults: the same job on one or two simulated NPUs. Every attempt has a fault of the simulated NPU at a random moment:
out of memory, a kernel that fails with an ACL code, a collective that times out, a kill, a flipped bit in the result of
a kernel, slow streams; between attempts a bit of the newest checkpoint is sometimes flipped. After some attempts there
are no more faults. A run is good if it ends with the weights of an undisturbed one and every attempt that failed named
its fault: an NpukitError, an error that `npukit explain` knows, or a killed process. It is also good if it stops for
good and says why: a bit may flip unnoticed into a checkpoint, and what is computed from it is refused.

infer: `npukit infer` with a tiny model on the CPU samples answers to 200 rows; its output must be the same file.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from benchmarks.robustness.killing.grpo import prepare_grpo, train_grpo
from benchmarks.tiny_server import make_example

from npukit.errors import NpukitError

SAVE_EVERY = 4
ATTEMPTS = 6  # with faults; later ones have none
KERNELS_A_STEP, LONGEST = 90, 60  # about; faults come within that many steps
# The job is tiny and noisy: only what no batch of it does is a fault.
WATCHED = {"enable": True, "action": "stop", "jump": 1e4}
ACL_CODES = (507000, 507013, 507014, 507015, 507018, 507034, 507057, 507899)
FLIPPED_KERNELS = ("addmm", "mm", "native_batch_norm", "native_batch_norm_backward", "mul")
INFER_ROWS = 200


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


def train(output: Path, steps: int, killer: Killer, parallel: Any, **more: Any) -> None:
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
        max_steps=steps,
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


def attempt(
    output: Path,
    ranks: int,
    steps: int,
    parallel: str = "ddp",
    kill_seed: int | None = None,
    fault: str | None = None,
    seconds: float = 300,
    job: Callable[..., None] = train,
) -> dict[int, tuple[int, str]]:
    """Run the job once, each rank a fork; the exit code and error of each rank that failed, the first one first."""
    victim, children = random.Random(kill_seed).randrange(ranks), {}
    port = free_port()
    sys.stdout.flush()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            become_rank(rank, ranks, port, output, fault)
            killer = Killer(kill_seed if rank == victim else None, rank)
            watched = {"feature_detection": WATCHED} if fault is not None else {}
            run_and_exit(output.with_suffix(f".error{rank}"), job, output, steps, killer, parallel, **watched)
        children[child] = rank
    failed: dict[int, tuple[int, str]] = {}
    deadline = time.monotonic() + seconds
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            if time.monotonic() > deadline:
                failed.setdefault(-1, (1, "no end"))
                for other in children:
                    os.kill(other, signal.SIGKILL)
            time.sleep(0.01)
        elif child in children:  # and not a compiler's, or the like
            rank = children.pop(child)
            if status and (not failed or not os.WIFSIGNALED(status)):
                error = output.with_suffix(f".error{rank}")
                failed[rank] = (os.waitstatus_to_exitcode(status), error.read_text() if error.exists() else "")
                # The others notice by themselves, or are ended.
                deadline = min(deadline, time.monotonic() + (0 if fault is None else 5))
    return failed


def become_rank(rank: int, ranks: int, port: int, output: Path, fault: str | None) -> None:
    file = os.open(output.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if ranks > 1:
        job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in job.items()}, MASTER_ADDR="localhost")
    if fault is not None:
        os.environ["NPUKIT_SIM_FAULTS"] = fault
        ctypes.CDLL("libascendcl.so").npusim_read_faults()


def run_and_exit(error: Path, job: Callable[..., None], *args: Any, **more: Any) -> None:
    """Train in this fork, and end it; what went wrong is in `error`."""
    error.unlink(missing_ok=True)
    try:
        job(*args, **more)
    except NpukitError as refused:
        error.write_text(f"NpukitError: {refused}")
        os._exit(1)
    except BaseException:
        error.write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return int(free.getsockname()[1])


def equal(first: Path, second: Path) -> bool:
    """Whether two runs ended with the same weights, bit by bit."""
    import torch
    from safetensors.torch import load_file

    expected, weights = (load_file(output / "model.safetensors") for output in (first, second))
    return expected.keys() == weights.keys() and all(torch.equal(expected[name], weights[name]) for name in expected)


def undisturbed(folder: Path, ranks: int, steps: int, **more: Any) -> Path:
    output = folder / f"undisturbed-{ranks}"
    if failed := attempt(output, ranks, steps, **more):
        sys.exit(f"the undisturbed run failed: {failed}")
    return output


def kill_and_resume(folder: Path, ranks: int, times: int, steps: int, seed: int, **more: Any) -> bool:
    """Whether a run that is killed so often ends as an undisturbed one."""
    expected, disturbed = undisturbed(folder, ranks, steps, **more), folder / f"disturbed-{ranks}"
    began, kills = time.monotonic(), 0
    while kills < times and attempt(disturbed, ranks, steps, kill_seed=seed * 1000 + kills, **more):
        kills += 1
    if failed := attempt(disturbed, ranks, steps, **more):
        sys.exit(f"the resumed run failed: {failed}")
    same = equal(expected, disturbed)
    resumed = disturbed.with_suffix(".log").read_text().count("resuming after step")
    print(
        f"{ranks} rank{'s' * (ranks > 1)}: killed {kills} times, went on {resumed} times, "
        f"{time.monotonic() - began:.0f} s; final weights {'bit-identical' if same else 'DIFFER'}",
        flush=True,
    )
    return same and kills == times


def draw_fault(chance: random.Random, ranks: int) -> str:
    """A fault that `--fault` takes, for one of the ranks."""
    kinds = ["oom", "acl", "kill", "bitflip", *(["timeout"] if ranks > 1 else [])]
    kind, kernel = chance.choice(kinds), chance.randrange(1, KERNELS_A_STEP * LONGEST)
    rank = f",rank={chance.randrange(ranks)}" if ranks > 1 else ""
    rank += f";slow-stream={chance.randrange(1, 4)}" if chance.random() < 0.3 else ""
    if kind == "oom":
        return f"oom@{chance.randrange(1, 6)}{rank}"
    if kind == "acl":
        return f"acl={chance.choice(ACL_CODES)}@{kernel}{rank}"
    if kind == "bitflip":
        return f"bitflip@aten::{chance.choice(FLIPPED_KERNELS)}:{chance.randrange(1, 4 * LONGEST)}{rank}"
    return f"{kind}@{kernel if kind == 'kill' else chance.randrange(1, 8 * LONGEST)}{rank}"


def is_named(code: int, error: str) -> bool:
    """Whether the failure says what happened."""
    from npukit.explain import explain

    return code == -signal.SIGKILL or error.startswith("NpukitError") or bool(explain(error))


def flip_a_bit(output: Path, chance: random.Random) -> bool:
    """In a file of the newest checkpoint; whether there is one."""
    checkpoints = sorted(output.glob("checkpoint-*/rank-0.pt"), key=lambda path: path.stat().st_mtime)
    if len(checkpoints) < 2:  # one before it must be left
        return False
    data = bytearray(checkpoints[-1].read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    checkpoints[-1].write_bytes(data)
    return True


def train_through_faults(number: int, folder: Path, steps: int, seed: int, counts: collections.Counter[str]) -> str:
    """One run: what became of it, in capitals where it should not have."""
    chance = random.Random(f"{seed}-{number}")
    ranks = 1 + number % 2
    output = folder / f"run-{number}"
    unnamed, last, flips = [], "", 0
    for turn in range(ATTEMPTS + 4):
        fault = draw_fault(chance, ranks) if turn < ATTEMPTS else ""
        failed = attempt(output, ranks, steps, fault=fault)
        kind = fault.replace("=", "@").partition("@")[0] or "none"
        counts[f"{kind} {'stopped' if failed else 'went through'}"] += 1
        counts["slow streams beside"] += "slow" in fault
        flips += kind == "bitflip"
        if not failed:
            break
        _, last = next(iter(failed.values()))
        if not any(is_named(*failure) for failure in failed.values()):
            unnamed.append(f"{fault}: {last[-400:]}")
        if turn < ATTEMPTS and chance.random() < 0.3 and flip_a_bit(output, chance):
            counts["checkpoint bit flipped"] += 1
    if unnamed:
        return "UNNAMED: " + " | ".join(unnamed)
    if failed:
        return f"stopped for good: {last[:150]}" if flips else f"NO END: {last[-300:]}"
    same = equal(folder / f"undisturbed-{ranks}", output)
    return "equal" if same else ("differs, after a flipped bit that nobody noticed" if flips else "DIFFERS")


@contextlib.contextmanager
def training_folder(device: str, ranks: int) -> Iterator[Path]:
    """A folder to train in, once this process has what every attempt, which is a fork of it, would have to import."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HCCL_EXEC_TIMEOUT": "20"}
    if device == "sim":
        from npukit.simulate import activate

        activate(devices=ranks)
    for module in ("torch._dynamo", "npukit.train.trainer", "npukit.rl.rollouts", "npukit.llm.finetune.train"):
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def with_kills(
    kills: int = 20,
    steps: int = 150,
    ranks: tuple[int, ...] = (1, 2),
    device: Literal["cpu", "sim"] = "cpu",
    task: Literal["regression", "grpo", "turns"] = "regression",
    parallel: Annotated[str, "ddp, or with --device sim: fsdp2, zero2, zero3"] = "ddp",
    seed: int = 0,
) -> bool:
    jobs = {"regression": train, "grpo": train_grpo, "turns": functools.partial(train_grpo, turns=True)}
    more = {"parallel": parallel, "job": jobs[task]}
    with training_folder(device, max(ranks)) as folder:
        if task != "regression":
            prepare_grpo(folder)
        results = [kill_and_resume(folder, count, kills, steps, seed, **more) for count in ranks]
    return not all(results)


def with_faults(runs: int = 50, steps: int = 200, seed: int = 0) -> bool:
    counts: collections.Counter[str] = collections.Counter()
    ends: collections.Counter[str] = collections.Counter()
    with training_folder("sim", 2) as folder:
        for ranks in (1, 2):
            undisturbed(folder, ranks, steps, fault="")
        for number in range(runs):
            outcome = train_through_faults(number, folder, steps, seed, counts)
            ends[outcome.partition(":")[0]] += 1
            print(f"{number:3}: {outcome}", flush=True)
    print(json.dumps({"attempts": dict(sorted(counts.items())), "runs": dict(ends)}, indent=1))
    return any(end.isupper() for end in ends)


def start_infer(model: Path, data: Path, output: Path) -> subprocess.Popen[bytes]:
    """The process that `npukit infer` starts, so that the kill hits the engine and not its launcher."""
    from npukit.inference.start import UseJob, handed_over
    from npukit.launch.devices import choose
    from npukit.llm.config.use import Use

    use = Use(
        model={"path": str(model)},
        data={"input": [str(data)], "output": output},
        sampling={"temperature": 1.0, "max_new_tokens": 40},
        engine={"max_num_seqs": 8},
    )
    variables = {**choose("cpu").environment(), **handed_over(UseJob("infer", use)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "npukit.inference.process"]
    return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def answered(part: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in part.glob("rows-*"))


def infer_with_kills(kills: int = 20, seed: int = 0) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        return not kill_infer(Path(folder), kills, random.Random(seed))


def kill_infer(folder: Path, times: int, pick: random.Random) -> bool:
    """Whether `npukit infer` that is killed so often writes what an undisturbed one does."""
    model, data = make_example(folder), folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Question number {n}?"}) + "\n" for n in range(INFER_ROWS)))
    whole, disturbed = folder / "whole.jsonl", folder / "killed.jsonl"
    assert start_infer(model, data, whole).wait() == 0
    part, kills = folder / "killed.jsonl.part", 0
    while kills < times:
        process, before = start_infer(model, data, disturbed), answered(part)
        wait = before + pick.randint(1, max(1, (INFER_ROWS - before) // (times - kills + 1)))
        while answered(part) < wait and process.poll() is None:
            time.sleep(0.005)
        time.sleep(pick.random() / 20)
        process.kill()
        if process.wait() == 0:
            break
        kills += 1
        print(f"kill {kills}: {answered(part)} of {INFER_ROWS} rows answered", flush=True)
    if not disturbed.exists():
        assert start_infer(model, data, disturbed).wait() == 0
    same = whole.read_bytes() == disturbed.read_bytes()
    print(f"{kills} kills, {len(disturbed.read_text().splitlines())} rows; the same as undisturbed: {same}")
    return same


COMMANDS = {"kills": with_kills, "faults": with_faults, "infer": infer_with_kills}
