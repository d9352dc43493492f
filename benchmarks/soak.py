"""Train through faults drawn at random, and resume until the end: it must be the end of an undisturbed run.

    python -m benchmarks.soak [--runs 50] [--steps 200] [--seed 0]

Each run trains on one or two simulated NPUs. Every attempt has a fault of the simulated NPU at a random moment: memory
that runs out, a kernel that fails with an ACL code, a collective that times out, a kill, a flipped bit in what a kernel
computes, streams that start late; and between attempts a bit of the newest checkpoint is flipped now and then. Faults
end after some attempts; then the run goes on undisturbed to its last step. Weights are compared bit by bit.

A run is good if it ends with the weights of the undisturbed one and every attempt that failed named its fault: an
error of npukit, a known error of torch_npu that `npukit explain` knows, or a killed process. It is also good if it
stops for good and says why: a bit may flip unnoticed into a checkpoint, and what is computed from it is refused.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks import resume_after_kills as job

from npukit.errors import NpukitError
from npukit.explain import explain

ATTEMPTS = 6  # with faults; later ones have none
KERNELS_A_STEP, LONGEST = 90, 60  # about; faults come within that many steps
# The job is tiny and noisy: only what no batch of it does is a fault.
WATCHED = {"enable": True, "action": "stop", "jump": 1e4}
ACL_CODES = (507000, 507013, 507014, 507015, 507018, 507034, 507057, 507899)
FLIPPED_KERNELS = (
    "aten::addmm",
    "aten::mm",
    "aten::native_batch_norm",
    "aten::native_batch_norm_backward",
    "aten::mul",
)


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
        return f"bitflip@{chance.choice(FLIPPED_KERNELS)}:{chance.randrange(1, 4 * LONGEST)}{rank}"
    return f"{kind}@{kernel if kind == 'kill' else chance.randrange(1, 8 * LONGEST)}{rank}"


def attempt(output: Path, ranks: int, fault: str, seconds: float = 300) -> dict[int, tuple[int, str]]:
    """Run the job once, each rank a fork; the exit code and error of each rank that failed, the first one first."""
    port, children = job.free_port(), {}
    sys.stdout.flush()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            become_rank(rank, ranks, port, output, fault)
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
            time.sleep(0.05)
        elif child in children:
            rank = children.pop(child)
            if status and (not failed or not os.WIFSIGNALED(status)):
                error = output.with_suffix(f".error{rank}")
                failed[rank] = (os.waitstatus_to_exitcode(status), error.read_text() if error.exists() else "")
                deadline = min(deadline, time.monotonic() + 5)  # the others notice by themselves, or are ended
    return failed


def become_rank(rank: int, ranks: int, port: int, output: Path, fault: str) -> None:
    """Train, in this fork, with the fault; does not return."""
    error = output.with_suffix(f".error{rank}")
    error.unlink(missing_ok=True)
    job.become_rank(rank, ranks, port, output.with_suffix(".log"))
    os.environ["NPUKIT_SIM_FAULTS"] = fault
    ctypes.CDLL("libascendcl.so").npusim_read_faults()
    try:
        job.train(output, job.Killer(None, rank), "ddp", feature_detection=WATCHED)
    except NpukitError as told:
        error.write_text(f"NpukitError: {told}")
        os._exit(1)
    except BaseException:
        error.write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def is_named(code: int, error: str) -> bool:
    """Whether somebody who sees this failure is told what happened."""
    return code == -signal.SIGKILL or error.startswith("NpukitError") or bool(explain(error))


def flip_a_bit(output: Path, chance: random.Random) -> bool:
    """In a file of the newest checkpoint; whether there is one."""
    found = sorted(output.glob("checkpoint-*/rank-0.pt"), key=lambda path: path.stat().st_mtime)
    if len(found) < 2:  # one before it must be left
        return False
    data = bytearray(found[-1].read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    found[-1].write_bytes(data)
    return True


def soak(number: int, folder: Path, seed: int, counts: collections.Counter[str]) -> str:
    """One run: what became of it."""
    chance = random.Random(f"{seed}-{number}")
    ranks = 1 + number % 2
    output = folder / f"run-{number}"
    unnamed, last, flips = [], "", 0
    for turn in range(ATTEMPTS + 4):
        fault = draw_fault(chance, ranks) if turn < ATTEMPTS else ""
        failed = attempt(output, ranks, fault)
        kind = fault.replace("=", "@").partition("@")[0] or "none"
        counts[f"{kind} {'stopped' if failed else 'went through'}"] += 1
        counts["slow streams beside"] += "slow" in fault
        flips += kind == "bitflip"
        if not failed:
            break
        _, last = next(iter(failed.values()))
        if not any(is_named(*each) for each in failed.values()):
            unnamed.append(f"{fault}: {last[-400:]}")
        if turn < ATTEMPTS and chance.random() < 0.3 and flip_a_bit(output, chance):
            counts["checkpoint bit flipped"] += 1
    if unnamed:
        return "UNNAMED " + " | ".join(unnamed)
    if failed:
        return f"stopped for good: {last[:150]}" if flips else f"NO END: {last[-300:]}"
    same = equal(folder / f"undisturbed-{ranks}", output)
    return "equal" if same else ("differs, after a flipped bit that nobody noticed" if flips else "DIFFERS")


def equal(first: Path, second: Path) -> bool:
    import torch

    expected, found = job.weights(first), job.weights(second)
    return expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HCCL_EXEC_TIMEOUT"] = "20"
    from npukit.simulate import activate

    activate(devices=2)
    for module in ("torch._dynamo", "npukit.train.trainer"):  # every attempt is a fork that has these already
        importlib.import_module(module)
    job.STEPS = arguments.steps
    counts: collections.Counter[str] = collections.Counter()
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            if failed := attempt(Path(folder) / f"undisturbed-{ranks}", ranks, ""):
                sys.exit(f"the undisturbed run failed: {failed}")
        for number in range(arguments.runs):
            became = soak(number, Path(folder), arguments.seed, counts)
            ends[became.partition(":")[0].partition("UNNAMED")[0] or "UNNAMED"] += 1
            print(f"{number:3}: {became}", flush=True)
    print(json.dumps({"attempts": dict(sorted(counts.items())), "runs": dict(ends)}, indent=1))
    sys.exit(any(end.isupper() or end.split()[0].isupper() for end in ends))


if __name__ == "__main__":
    main()
