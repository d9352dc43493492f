"""Plans a job of several ranks on one or more machines, and becomes its launcher on this one."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from npukit.errors import NpukitError
from npukit.facts.launch_settings import Setting, launch_settings
from npukit.launch.devices import Devices
from npukit.launch.nodes import NodePlan
from npukit.launch.run import AGENT, become, script_arguments, spare_launcher
from npukit.launch.script import RANK_CPUS
from npukit.machine import Machine, cpus, network
from npukit.report.terminal import say

LOGS = Path("npukit-logs")
NAMES_APPEAR = 300.0  # seconds to wait until a scheduler's host names can be resolved
LOG_FOLDER = "NPUKIT_LOG_DIR"  # replaces the folder of the ranks' logs


@dataclass(frozen=True)
class Job:
    """The part of a job that this node starts."""

    plan: NodePlan
    devices: Devices  # of this node, one a rank
    command: list[str]
    variables: list[Setting]
    logs: Path

    def __str__(self) -> str:
        lines = [f"# {self.layout}"]
        if self.devices.simulated:
            lines.append(f'eval "$(npukit sim env --devices {self.devices.total} --card {self.devices.card})"')
        lines += [
            f"export {variable.name}={shlex.quote(variable.value)}  # {variable.reason}" for variable in self.variables
        ]
        return "\n".join([*lines, shlex.join(self.command)])

    @property
    def layout(self) -> str:
        """How many ranks are started on which nodes, and what decided that.

        >>> plan_job(["train.py"], NodePlan(), choose("npu", 8), os.environ).layout
        '8 ranks on 8 NPUs'
        """
        here = f"{self.devices.count} rank{'s' * (self.devices.count > 1)} on {self.devices}"
        if self.plan.nodes == 1:
            return here
        plan = self.plan
        return f"{here}, node {plan.rank} of {plan.nodes} ({plan.source}), node 0 is {plan.master}:{plan.port}"


def new_log_folder() -> Path:
    """The folder, yet to be made, in which this command leaves its logs.

    >>> new_log_folder().parent
    PosixPath('npukit-logs')
    """
    return LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def plan_job(
    command: Sequence[str],
    plan: NodePlan,
    devices: Devices,
    environ: Mapping[str, str],
    auto: bool = False,
    max_restarts: int = 0,
    logs: Path | None = None,
) -> Job:
    """Work out what this node has to start.

    >>> print(plan_job(["train.py"], NodePlan(), choose("npu", 8), os.environ))
    """
    count, kind = devices.count, devices.kind
    logs = logs or Path(environ.get(LOG_FOLDER) or new_log_folder())
    where, known = ["--standalone"], {"threads": str(max(1, (os.cpu_count() or 1) // count))}
    if plan.nodes > 1:
        address = network.resolve(plan.master, 0 if plan.source in ("options", "hostfile") else NAMES_APPEAR)
        _check_network(plan, address, environ)
        known["interface"] = network.interface_to(address)
        where = _meeting_place(plan, max_restarts)
    wanted = launch_settings(environ, kind == "npu", plan.nodes, known)
    real = kind == "npu" and not devices.simulated
    if real and "CPU_AFFINITY_CONF" not in environ and (bound := cpus.of_ranks(list(devices.visible[:count]))):
        wanted.append(Setting(RANK_CPUS, bound, "keeps each rank on the CPUs near its card"))
    options = ["--nproc-per-node", str(count), "--max-restarts", str(max_restarts), "--log-dir", str(logs)]
    return Job(plan, devices, [*AGENT, *where, *options, *script_arguments(command, auto)], wanted, logs)


def start(job: Job, environment: Mapping[str, str]) -> NoReturn:
    """Become the launcher of `job`."""
    uses_hccl = job.devices.kind == "npu" and not job.devices.simulated
    ports = network.hccl_ports(environment)
    if uses_hccl and (taken := network.ports_in_use(Machine()).intersection(ports)):
        used = f"{ports.start} to {ports.stop - 1}"
        say(f"HCCL uses ports {used}, but {min(taken)} is taken: set HCCL_IF_BASE_PORT.")
    complete = {**environment, **{variable.name: variable.value for variable in job.variables}}
    spare_launcher(complete, job.devices.count)
    say(f"{job.layout}; logs are in {job.logs}")
    become(job.command, complete)


def _meeting_place(plan: NodePlan, max_restarts: int) -> list[str]:
    place = ["--nnodes", str(plan.nodes), "--node-rank", str(plan.rank)]
    if not max_restarts:
        return [*place, "--master-addr", plan.master, "--master-port", str(plan.port)]
    # Only this kind of rendezvous restarts all nodes after a failure.
    host = f"is_host={int(plan.rank == 0)}"
    endpoint = f"{plan.master}:{plan.port}"
    return [*place, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "npukit", "--rdzv-conf", host]


def _check_network(plan: NodePlan, address: str, environ: Mapping[str, str]) -> None:
    if plan.rank == 0:
        network.check_listening(address, plan.port)
    interfaces = ("lo", *network.interfaces(Machine()))
    for variable in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        prefixes = [word.lstrip("=") for word in environ.get(variable, "").split(",") if word]
        if prefixes and prefixes[0][0] != "^" and not any(name.startswith(tuple(prefixes)) for name in interfaces):
            there = ", ".join(interfaces)
            raise NpukitError(f"{variable} is {environ[variable]}, but this machine has {there}: unset or correct it.")
