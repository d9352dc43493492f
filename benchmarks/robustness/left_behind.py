"""End commands in every way and count what is left: temporary and unfinished files, shared memory, processes.

    python -m benchmarks left_behind commands [--only verify ...]
    python -m benchmarks left_behind kills [--runs 100]

commands: each command ends by itself, with an error, by SIGTERM and by SIGKILL in the middle. A process that gets
SIGKILL cannot tidy up; what it leaves must be gone after the next command, which is the last column. Every other count
must be 0.

kills: each run trains on two simulated NPUs, and the launcher or one of its ranks gets SIGKILL at a random moment.
Every fifth run starts without the compiled CANN libraries, so that some kills hit the set-up. At the end one run must
work undisturbed.

On a busy machine give it shared memory of its own, as root:

    unshare --mount sh -c "mount -t tmpfs none /dev/shm && python -m benchmarks left_behind commands"
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from benchmarks.tiny_server import make_example

SHARED_MEMORY = Path("/dev/shm")
MARK = "NPUKIT_LEFT_BEHIND"
SCRIPT = """
import sys, time, torch
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=8, num_workers=1)
for epoch in range(int(sys.argv[1])):
    for batch in loader:
        loss = model(batch).square().mean()
        loss.backward()
        print(f"loss {loss.item()}", flush=True)
"""
NPU_SCRIPT = """
import os, torch, torch.distributed as dist
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).npu())
for step in range(int(os.environ["STEPS"])):
    model(torch.randn(8, 64, device="npu")).sum().backward()
torch.npu.synchronize()
"""
LONGEST_RUN = 15.0  # seconds until a kill
GRACE = 20.0  # seconds: ranks die with their launcher, a moment later
PROJECT_FILE = "import torch\nx = torch.ones(2).cuda()\n" + "# text\n" * 2000


@dataclass(frozen=True)
class Case:
    """A command, one that takes long enough to be killed, and one that fails."""

    short: list[str]
    long: list[str]
    wrong: list[str]
    seconds: float  # the command is killed at a random moment until then


def cases(work: Path) -> dict[str, Case]:
    script, chat = str(work / "train.py"), work / "chat"
    model, data = str(chat / "model"), str(chat / "data" / "cards.jsonl")
    sft = ["sft", "--device", "cpu", "--model", model, "--dataset", data, "--output_dir"]
    verify = ["verify", "--device", "cpu", str(work / "before"), str(work / "after"), "--", "python", "train.py"]
    launch = ["launch", "--device", "cpu", "--devices", "2", "--log-dir", str(work / "logs"), script]
    export = ["export", model, "--output"]
    serve = ["serve", model, "--device", "cpu", "--port", str(random.randrange(20000, 30000))]
    return {
        "train": Case(
            [*sft, f"{work}/one", "--max_steps", "2"], [*sft, f"{work}/two", "--max_steps", "100000"],
            [*sft, f"{work}/three", "--max_steps", "2", "--model", f"{work}/none"], 25,
        ),
        "run": Case(["run", "--device", "cpu", "--devices", "2", script, "1"],
                    ["run", "--device", "cpu", "--devices", "2", script, "100000"],
                    ["run", "--device", "cpu", "--devices", "2", script, "x"], 25),
        "launch": Case([*launch, "1"], [*launch, "100000"], [*launch, "x"], 25),
        "verify": Case([*verify, "1"], [*verify, "100000"], [*verify, "x"], 15),
        "migrate": Case(["migrate", str(work / "project"), "--output", f"{work}/migrated"],
                        ["migrate", str(work / "project"), "--output", f"{work}/migrated2"],
                        ["migrate", str(work / "project"), "--output", f"{work}/none/migrated"], 4),
        "serve": Case(["serve", "--help"], serve, ["serve", f"{work}/none", "--device", "cpu"], 25),
        "export": Case([*export, f"{work}/exported"], [*export, f"{work}/exported2"], [*export, script], 6),
    }  # fmt: skip


def left(work: Path, mark: str, shared_before: set[Path]) -> list[str]:
    """What is there that a command should have removed."""
    # Of a data loader's worker in the script, which leaves it without npukit, too; and torch's own cache.
    theirs = ("pymp-", "torchinductor_")
    temporary = [path.name for path in (work / "tmp").iterdir() if not path.name.startswith(theirs)]
    unfinished = [str(path.relative_to(work)) for path in work.rglob(".unfinished-*")]
    shared = [path.name for path in set(SHARED_MEMORY.iterdir()) - shared_before]
    return [*temporary, *unfinished, *shared, *(f"process {pid}" for pid in processes(mark))]


def processes(mark: str) -> list[int]:
    """The live processes that were started with this mark in their environment."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes() and (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
    return pids


def end(work: Path, words: list[str], by: signal.Signals | None, seconds: float) -> list[str]:
    """Run a command to its end, or to that of a random moment; returns what it left."""
    mark, shared = f"{os.getpid()}-{random.random()}", set(SHARED_MEMORY.iterdir())
    environment = {**os.environ, MARK: mark, "TMPDIR": str(work / "tmp"), "NPUKIT_CACHE": str(work / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "npukit", *words], env=environment, cwd=work,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    if by is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(seconds / 4, seconds))
        process.send_signal(by)
    process.wait(300)
    deadline = time.monotonic() + GRACE
    while processes(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    remains = left(work, mark, shared)
    for pid in processes(mark):
        os.kill(pid, signal.SIGKILL)
    return remains


def prepare(work: Path) -> None:
    (work / "tmp").mkdir()
    (work / "train.py").write_text(SCRIPT)
    for name in ("before", "after"):
        (work / name).mkdir()
        shutil.copy(work / "train.py", work / name)
    (work / "project").mkdir()
    for number in range(1500):
        (work / "project" / f"{number}.py").write_text(PROJECT_FILE)
    make_example(work / "chat")


def end_every_command(only: Annotated[tuple[str, ...], "these commands"] = ()) -> int:
    random.seed(0)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work)
        print(f"{'command':<10}{'end':>6}{'error':>7}{'SIGTERM':>9}{'SIGKILL':>9}{'next':>6}", flush=True)
        for name, case in cases(work).items():
            if only and name not in only:
                continue
            ended = [end(work, case.short, None, 0), end(work, case.wrong, None, 0)]
            ended += [end(work, case.long, number, case.seconds) for number in (signal.SIGTERM, signal.SIGKILL)]
            for made in (*work.glob("*2"), *work.glob("exported"), *work.glob("migrated")):
                shutil.rmtree(made) if made.name in ("exported", "migrated") else None
            ended.append(end(work, case.short, None, 0))
            counts = "".join(f"{len(remains):>{width}}" for remains, width in zip(ended, (6, 7, 9, 9, 6), strict=True))
            print(f"{name:<10}{counts}", flush=True)
            wrong = [item for column in (0, 1, 2, 4) for item in ended[column]]
            failures += bool(wrong)
            if wrong or ended[3]:
                print(f"    left: {', '.join(sorted({*wrong, *ended[3]}))}", flush=True)
    return failures


def start_npu_run(cache: Path, script: Path, mark: str, steps: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "NPUKIT_CACHE": str(cache), MARK: mark, "STEPS": str(steps)}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--devices", "2", str(script)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_npu_run(number: int, cache: Path, script: Path) -> str:
    """Start a run, kill one of its processes after a random time. Returns what was left behind, if anything."""
    mark = f"killed-run-{os.getpid()}-{number}"
    if number % 5 == 0:
        shutil.rmtree(cache / "cann", ignore_errors=True)
    before = set(SHARED_MEMORY.iterdir())
    run = start_npu_run(cache, script, mark, steps=100000)
    time.sleep(random.uniform(0, LONGEST_RUN))
    victim = random.choice(processes(mark) or [run.pid])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    deadline = time.monotonic() + GRACE
    while (left := processes(mark)) and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(0.2)
    for process in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    run.wait()
    files = sorted(path.name for path in set(SHARED_MEMORY.iterdir()) - before)
    return ", ".join([f"process {process}" for process in left] + files)


def kill_npu_runs(runs: int = 100) -> bool:
    from npukit.simulate import build

    random.seed(0)
    ready = build.ensure()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        cache, script = Path(folder, "cache"), Path(folder, "train.py")
        script.write_text(NPU_SCRIPT)
        shutil.copytree(ready.cache, cache, copy_function=os.link, symlinks=True)
        for number in range(1, runs + 1):
            left_over = kill_npu_run(number, cache, script)
            failures += bool(left_over)
            print(f"{number}: {'left ' + left_over if left_over else 'clean'}", flush=True)
        works = start_npu_run(cache, script, "last", steps=3).wait() == 0
    outcome = "works" if works else "FAILS"
    print(f"{runs} runs killed: {failures} left something behind; the next run {outcome}")
    return failures > 0 or not works


COMMANDS = {"commands": end_every_command, "kills": kill_npu_runs}
