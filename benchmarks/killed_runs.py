"""Kill a hundred runs with SIGKILL at random moments: no process, no shared memory, no broken cache may be left.

    python benchmarks/killed_runs.py [--runs 100]

Each run trains on two simulated NPUs; the launcher or one of its ranks is killed outright. Every fifth run starts
without the compiled CANN libraries, so that some kills hit the set-up. At the end one run must work undisturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from npukit.simulate import build

SHARED_MEMORY = Path("/dev/shm")
LONGEST_RUN = 15.0
GRACE = 20.0
SCRIPT = """
import os, torch, torch.distributed as dist
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).npu())
for step in range(int(os.environ["STEPS"])):
    model(torch.randn(8, 64, device="npu")).sum().backward()
torch.npu.synchronize()
"""


def processes(mark: str) -> list[int]:
    """The live processes that were started with this mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def start(cache: Path, script: Path, mark: str, steps: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "NPUKIT_CACHE": str(cache), "MARK": mark, "STEPS": str(steps), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "npukit", "run", "--device", "sim", "--devices", "2", str(script)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_one_run(number: int, cache: Path, script: Path) -> str:
    """Start a run, kill one of its processes after a random time. Returns what was left behind, if anything."""
    mark = f"killed-run-{os.getpid()}-{number}"
    if number % 5 == 0:
        shutil.rmtree(cache / "cann", ignore_errors=True)
    before = set(SHARED_MEMORY.iterdir())
    run = start(cache, script, mark, steps=100000)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    ready = build.ensure()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        cache, script = Path(folder, "cache"), Path(folder, "train.py")
        script.write_text(SCRIPT)
        shutil.copytree(ready.cache, cache, copy_function=os.link, symlinks=True)
        for number in range(1, runs + 1):
            left = kill_one_run(number, cache, script)
            failures += bool(left)
            print(f"{number}: {'left ' + left if left else 'clean'}", flush=True)
        works = start(cache, script, "last", steps=3).wait() == 0
    print(f"{runs} runs killed: {failures} left something behind; the next run {'works' if works else 'FAILS'}")
    sys.exit(bool(failures) or not works)


if __name__ == "__main__":
    main()
