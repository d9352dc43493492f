"""Plan a job of several ranks on one or more machines, and become its launcher on this one."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from npukit.errors import NpukitError
from npukit.launch import cpus, network
from npukit.launch.device import DEVICE_FILES, Device
from npukit.launch.nodes import NodePlan
from npukit.launch.run import AGENT, become, script_arguments, spare_launcher
from npukit.launch.script import RANK_CPUS
from npukit.launch.variables import Variable, variables

LOGS = Path("npukit-logs")


@dataclass(frozen=True)
class Job:
    """What this node starts."""

    plan: NodePlan
    device: Device
    ranks: int  # on this node
    command: list[str]
    variables: list[Variable]
    logs: Path

    def __str__(self) -> str:
        where = "" if self.plan.nodes == 1 else f", node {self.plan.rank} of {self.plan.nodes} ({self.plan.source})"
        lines = [f"# {_ranks(self.ranks)} on {self.device.value}{where}"]
        if self.device is Device.sim:
            lines.append(f'eval "$(npukit sim env --devices {self.ranks})"')
        lines += [f"export {each.name}={shlex.quote(each.value)}  # {each.reason}" for each in self.variables]
        return "\n".join([*lines, shlex.join(self.command)])


def plan_job(
    command: Sequence[str],
    plan: NodePlan,
    device: Device,
    environ: Mapping[str, str],
    ranks: int | None = None,
    auto: bool = False,
    max_restarts: int = 0,
    logs: Path | None = None,
) -> Job:
    """Work out what this node has to start.

    >>> print(plan_job(["train.py"], NodePlan(), Device.npu, os.environ, ranks=8))
    """
    count = ranks or plan.ranks or count_devices(device, environ)
    logs = logs or LOGS / time.strftime("%Y%m%d-%H%M%S")
    where, known = ["--standalone"], {"threads": str(max(1, (os.cpu_count() or 1) // count))}
    if plan.nodes > 1:
        address = network.resolve(plan.master)
        _check_network(plan, address, environ)
        known["interface"] = network.interface_to(address)
        where = _meeting_place(plan, max_restarts)
    wanted = variables(environ, device in (Device.npu, Device.sim), plan.nodes, known)
    if device is Device.npu and "CPU_AFFINITY_CONF" not in environ and (bound := cpus.of_ranks(_cards(environ, count))):
        wanted.append(Variable(RANK_CPUS, bound, "keeps each rank on the CPUs near its card"))
    options = ["--nproc-per-node", str(count), "--max-restarts", str(max_restarts), "--log-dir", str(logs)]
    return Job(plan, device, count, [*AGENT, *where, *options, *script_arguments(command, auto)], wanted, logs)


def start(job: Job, environment: Mapping[str, str]) -> NoReturn:
    """Become the launcher of `job`."""
    if job.device is Device.npu and "HCCL_IF_BASE_PORT" not in environment and (used := network.used_hccl_ports()):
        print(f"npukit: HCCL uses ports 60000 to 60031; {used[0]} is taken: set HCCL_IF_BASE_PORT.", file=sys.stderr)
    print(f"npukit: {_ranks(job.ranks)}; each writes its log in {job.logs}", file=sys.stderr)
    complete = {**environment, **{each.name: each.value for each in job.variables}}
    spare_launcher(complete, job.ranks)
    become(job.command, complete)


def _ranks(count: int) -> str:
    return f"{count} rank" + "s" * (count > 1)


def count_devices(device: Device, environ: Mapping[str, str]) -> int:
    """How many ranks there are when nobody says: as many as there are cards."""
    if device not in FILES:
        raise NpukitError("How many ranks? Say it with --nproc.")
    return len(visible_cards(device, environ)) or len(list(DEVICE_FILES.glob(FILES[device])))


FILES = {Device.npu: "davinci[0-9]*", Device.cuda: "nvidia[0-9]*"}
NPU_CARDS = "ASCEND_RT_VISIBLE_DEVICES"
VISIBLE = {Device.npu: NPU_CARDS, Device.sim: NPU_CARDS, Device.cuda: "CUDA_VISIBLE_DEVICES"}


def visible_cards(device: Device, environ: Mapping[str, str]) -> list[int]:
    """The cards that the user chose by a variable; none where it is not set, or not by number."""
    numbers = environ.get(VISIBLE.get(device, ""), "").split(",")
    return [int(each) for each in numbers if each.strip().isdigit()]


def _cards(environ: Mapping[str, str], count: int) -> list[int]:
    return (visible_cards(Device.npu, environ) or list(range(count)))[:count]


def _meeting_place(plan: NodePlan, max_restarts: int) -> list[str]:
    place = ["--nnodes", str(plan.nodes), "--node-rank", str(plan.rank)]
    if not max_restarts:
        return [*place, "--master-addr", plan.master, "--master-port", str(plan.port)]
    # Only a rendezvous of this kind brings all nodes together again after a failure.
    host = f"is_host={int(plan.rank == 0)}"
    endpoint = f"{plan.master}:{plan.port}"
    return [*place, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "npukit", "--rdzv-conf", host]


def _check_network(plan: NodePlan, address: str, environ: Mapping[str, str]) -> None:
    if plan.rank == 0:
        network.check_listening(address, plan.port)
    interfaces = [name for _, name in socket.if_nameindex()]
    for variable in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        prefixes = [each.lstrip("=") for each in environ.get(variable, "").split(",") if each]
        if prefixes and prefixes[0][0] != "^" and not any(name.startswith(tuple(prefixes)) for name in interfaces):
            there = ", ".join(interfaces)
            raise NpukitError(f"{variable} is {environ[variable]}, but this machine has {there}: unset or mend it.")
