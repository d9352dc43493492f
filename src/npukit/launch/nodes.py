"""Which nodes a job has, and which of them this is: from options, a file of hosts, or a scheduler's variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from npukit.errors import NpukitError

DEFAULT_PORT = 29500
MODELARTS_PORT = 6060


@dataclass(frozen=True)
class NodePlan:
    """One node's place in a job."""

    nodes: int = 1
    rank: int = 0
    master: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    ranks: int | None = None  # on this node, where it is known
    source: str = "options"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.nodes:
            raise NpukitError(
                f"A job of {self.nodes} nodes has no node {self.rank} ({self.source}): they count from 0."
            )


Environ = Mapping[str, str]


def from_slurm(environ: Environ) -> NodePlan | None:
    """SLURM, one task a node: `srun --ntasks-per-node=1 npukit launch ...`."""
    if "SLURM_JOB_ID" not in environ or "SLURM_NODEID" not in environ:
        return None
    hosts = expand_hosts(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise NpukitError("SLURM started npukit launch more than once on this node: use srun --ntasks-per-node=1.")
    if len(hosts) < 2:
        return None
    port = 20000 + int(environ["SLURM_JOB_ID"]) % 20000
    ranks = _number(environ, "SLURM_GPUS_ON_NODE", "SLURM_NPUS_ON_NODE")
    return NodePlan(len(hosts), int(environ["SLURM_NODEID"]), hosts[0], port, ranks, "SLURM")


def from_modelarts(environ: Environ) -> NodePlan | None:
    """ModelArts, and other platforms on the Volcano scheduler, which sets the same VC_ variables."""
    hosts = [host.strip() for host in environ.get("VC_WORKER_HOSTS", "").split(",") if host.strip()]
    index = _number(environ, "VC_TASK_INDEX", "VK_TASK_INDEX")
    nodes = _number(environ, "MA_NUM_HOSTS", "VC_WORKER_NUM") or len(hosts)
    if not hosts or index is None or nodes < 2:
        return None
    source = "ModelArts" if "MA_NUM_HOSTS" in environ else "Volcano"
    return NodePlan(nodes, index, hosts[0], MODELARTS_PORT, _number(environ, "MA_NUM_GPUS"), source)


def from_kubernetes(environ: Environ) -> NodePlan | None:
    """Kubeflow's PyTorchJob and TrainJob: torchrun's own PET_ variables, or node numbers in RANK and WORLD_SIZE."""
    if "LOCAL_RANK" in environ:  # a rank that torchrun started: its RANK is not a node's
        return None
    nodes = _number(environ, "PET_NNODES", "WORLD_SIZE")
    rank = _number(environ, "PET_NODE_RANK", "RANK")
    master = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR")
    if nodes is None or rank is None or not master or nodes < 2:
        return None
    port = _number(environ, "PET_MASTER_PORT", "MASTER_PORT") or DEFAULT_PORT
    return NodePlan(nodes, rank, master, port, _number(environ, "PET_NPROC_PER_NODE"), "Kubernetes")


SCHEDULERS: tuple[Callable[[Environ], NodePlan | None], ...] = (from_modelarts, from_slurm, from_kubernetes)


def from_environment(environ: Environ) -> NodePlan:
    """What a scheduler says, else one node."""
    plans = (scheduler(environ) for scheduler in SCHEDULERS)
    return next((plan for plan in plans if plan), NodePlan())


def from_hostfile(text: str, names_of_this_host: Collection[str]) -> NodePlan:
    """A file with a host a line, as DeepSpeed and MPI take it: `worker-1 slots=8`. The first host is node 0."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    hosts = [words for words in lines if words]
    if not hosts:
        raise NpukitError("The hostfile names no host: write one a line, such as `worker-1 slots=8`.")
    for rank, (host, *options) in enumerate(hosts):
        if host in names_of_this_host:
            slots = [option.removeprefix("slots=") for option in options if option.startswith("slots=")]
            if slots and not slots[0].isdigit():
                raise NpukitError(f"The hostfile says slots={slots[0]} for {host}: that must be a number.")
            return NodePlan(len(hosts), rank, hosts[0][0], ranks=int(slots[0]) if slots else None, source="hostfile")
    named = ", ".join(words[0] for words in hosts)
    raise NpukitError(f"This host is not in the hostfile, which names {named}: add it, or give --node-rank.")


def parse_master(text: str) -> tuple[str, int]:
    """Address and port of node 0.

    >>> parse_master("10.0.0.1:29500")
    ('10.0.0.1', 29500)
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise NpukitError(f"--master {text} is not ADDRESS:PORT, such as 10.0.0.1:29500.")
    return address.strip("[]"), int(port)


def expand_hosts(text: str) -> list[str]:
    """SLURM's short form of a list of hosts, written out.

    >>> expand_hosts("node[08-10,12],login")
    ['node08', 'node09', 'node10', 'node12', 'login']
    """
    hosts = []
    for name in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", name)
        if not match:
            hosts.append(name)
            continue
        prefix, ranges, suffix = match.groups()
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                hosts += expand_hosts(f"{prefix}{number:0{len(first)}}{suffix}")
    return hosts


def _number(environ: Environ, *names: str) -> int | None:
    for name in names:
        if (value := environ.get(name, "")).isdigit():
            return int(value)
    return None
