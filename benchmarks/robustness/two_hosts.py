"""Train on two hosts of two simulated NPUs each, then kill ranks and cut the cable. Needs root: hosts are namespaces.

    python -m benchmarks two_hosts [--ways ddp fsdp2 zero3] [--faults 20]

Every way of sharing the work, started by every launcher, must end with the weights of one host with four; after a kill
or a cut, both hosts must end with HCCL's own error before the time limit, and leave no process behind.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import torch
from benchmarks.robustness.left_behind import MARK, processes
from tests.simulated.hosts import Host, two_hosts

from npukit.simulate import environment as simulated

WAYS = ("ddp", "fsdp2", "zero3")
LAUNCHERS = ("npukit", "SLURM", "torchrun", "DeepSpeed")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
EXEC_TIMEOUT, LIMIT = 10, 150.0
SCRIPT = """
from contextlib import nullcontext
import os, sys, torch, torch.distributed as dist
from torch import nn
way, steps, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).npu()
if way == "zero3":
    import deepspeed
    settings = {"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 3},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}}
    wrapped = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]
elif way == "ddp":
    wrapped = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    wrapped = fully_shard(model)
optimizer = None if way == "zero3" else torch.optim.AdamW(wrapped.parameters(), lr=0.01)
torch.manual_seed(100 + dist.get_rank())
for step in range(steps):
    loss = wrapped(torch.randn(32, 64).npu()).square().mean()
    if optimizer is None:
        wrapped.backward(loss)
        wrapped.step()
    else:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.npu.synchronize()
    if step == 2 and dist.get_rank() == 0:
        print("trains", flush=True)
gathered = deepspeed.zero.GatheredParameters(list(model.parameters())) if way == "zero3" else nullcontext()
with gathered:
    full = {name: (value.full_tensor() if hasattr(value, "full_tensor") else value).cpu()
            for name, value in model.state_dict().items()}
if dist.get_rank() == 0:
    torch.save(full, output)
dist.destroy_process_group()
"""


def command(launcher: str, hosts: int, number: int, devices: int) -> tuple[list[str], dict[str, str]]:
    """What starts one host's ranks, up to the script's name, and the variables that it finds."""
    if launcher == "npukit":
        nodes = ["--nnodes", str(hosts), "--node-rank", str(number), "--master", f"{ADDRESSES[0]}:29533"]
        return ["npukit", "launch", "--device", "sim", "--devices", str(devices), *nodes], {}
    if launcher == "SLURM":
        variables = {"JOB_ID": "77", "NODEID": str(number), "LOCALID": "0", "JOB_NODELIST": ",".join(ADDRESSES[:hosts])}
        words = ["npukit", "launch", "--device", "sim", "--devices", str(devices)]
        return words, {f"SLURM_{name}": value for name, value in variables.items()}
    if launcher == "torchrun":
        nodes = ["--nnodes", str(hosts), "--node-rank", str(number), "--nproc-per-node", str(devices)]
        return ["torch.distributed.run", *nodes, "--master-addr", ADDRESSES[0], "--master-port", "29533"], {}
    slots = {address: list(range(devices)) for address in ADDRESSES[:hosts]}
    world = base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()
    nodes = [f"--world_info={world}", f"--node_rank={number}", f"--master_addr={ADDRESSES[0]}", "--master_port=29533"]
    return ["deepspeed.launcher.launch", *nodes, "--no_local_rank"], {}


def start(
    hosts: tuple[Host, ...], launcher: str, devices: int, script: Path, *arguments: str, **more: str
) -> list[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HCCL_EXEC_TIMEOUT": str(EXEC_TIMEOUT), **more}
    if launcher in ("torchrun", "DeepSpeed"):
        environment = simulated(devices=devices, base=environment)
    jobs = []
    for number, host in enumerate(hosts):
        words, variables = command(launcher, len(hosts), number, devices)
        jobs.append(
            subprocess.Popen(
                host.inside(sys.executable, "-m", *words, str(script), *arguments),
                env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                cwd=script.parent,
            )
        )  # fmt: skip
    return jobs


def is_rank(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"npukit.launch.script" in words and b"npukit.launch.agent" not in words


def finish(jobs: list[subprocess.Popen[str]], mark: str, limit: float) -> tuple[list[str], int]:
    """What the jobs said until they ended or the limit was over, and how many processes were left: they are killed."""
    deadline = time.monotonic() + limit
    outputs = []
    for job in jobs:
        with contextlib.suppress(subprocess.TimeoutExpired):
            outputs.append(job.communicate(timeout=max(1, deadline - time.monotonic()))[0])
    time.sleep(1)
    left = processes(mark)
    for pid in left:
        print("left:", Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[-150:], flush=True)
        os.kill(pid, signal.SIGKILL)
    return outputs, len(left)


def compare(hosts: tuple[Host, Host], script: Path, way: str, launcher: str) -> bool:
    """Whether four ranks on two hosts end with the weights of four on one."""
    for name, places, devices in (("one", hosts[:1], 4), ("two", hosts, 2)):
        weights = script.parent / f"{way}-{name}.pt"
        if name == "one" and weights.exists():
            continue
        weights.unlink(missing_ok=True)
        mark = f"two-hosts-{os.getpid()}-{way}-{launcher}-{name}"
        jobs = start(places, launcher, devices, script, way, "6", str(weights), **{MARK: mark})
        outputs, left = finish(jobs, mark, LIMIT * 2)
        if left or any(job.returncode for job in jobs):
            print("\n".join(outputs))
            return False
    one, two = (torch.load(script.parent / f"{way}-{name}.pt") for name in ("one", "two"))
    return all(torch.equal(one[name], two[name]) for name in one)


def disturb(script: Path, way: str, number: int) -> tuple[str, float, bool, int]:
    """Kill a rank or cut the cable while both train: what was done, seconds until both ended, HCCL's error, left."""
    what = "kill" if number % 2 else "cut"
    mark = f"two-hosts-{os.getpid()}-{number}"
    with two_hosts() as hosts:
        jobs = start(hosts, "npukit", 1, script, way, "100000", "never.pt", **{MARK: mark})
        assert jobs[0].stdout
        log = ""
        while "trains" not in log and (line := jobs[0].stdout.readline()):
            log += line
        time.sleep(random.random())
        if what == "cut":
            hosts[number // 2 % 2].cut()
        else:
            os.kill(random.choice([pid for pid in processes(mark) if is_rank(pid)]), signal.SIGKILL)
        started = time.monotonic()
        outputs, left = finish(jobs, mark, LIMIT)
        seconds = time.monotonic() - started - 1
    named = sum("EI0002" in output or "EI0013" in output for output in outputs)
    if left or not named:
        print(*(output[-1500:] for output in outputs), sep="\n----\n", flush=True)
    return what, seconds, named == (2 if what == "cut" else max(1, named)), left


def main(faults: int = 20, ways: Annotated[tuple[str, ...], WAYS] = WAYS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        for way in ways:
            with two_hosts() as hosts:
                for launcher in LAUNCHERS:
                    equal = "equal" if compare(hosts, script, way, launcher) else "NO"
                    print(f"{way:6} {launcher:9} two hosts of two against one of four: {equal}", flush=True)
        results = []
        for number in range(faults):
            way = WAYS[number // 2 % len(WAYS)]
            what, seconds, named, left = disturb(script, way, number)
            results.append(named and not left)
            print(f"{way:6} {what:4} both ended after {seconds:5.1f} s, HCCL's error: {named}, left behind: {left}",
                  flush=True)  # fmt: skip
        print(f"{sum(results)} of {faults} faults ended well")
