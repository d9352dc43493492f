"""The nodes of a job and the rank of this one: from options, a hostfile, or a scheduler's variables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from npukit.errors import NpukitError
from npukit.launch.devices import POD_VARIABLES
from npukit.machine.slurm import expand_hosts

DEFAULT_PORT = 29500
MODELARTS_PORT = 6060


@dataclass(frozen=True)
class NodePlan:
    """One node's place in a job."""

    nodes: int = 1
    rank: int = 0
    master: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    ranks: int | None = None  # on this node, if known
    source: str = "options"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.nodes:
            raise NpukitError(
                f"A job of {self.nodes} nodes has no node {self.rank} ({self.source}): nodes are numbered from 0."
            )


Environ = Mapping[str, str]


def from_slurm(environ: Environ) -> NodePlan | None:
    """SLURM, with one task per node: `srun --ntasks-per-node=1 npukit launch ...`."""
    if "SLURM_JOB_ID" not in environ or "SLURM_NODEID" not in environ:
        return None
    hosts = expand_hosts(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    if environ.get("SLURM_LOCALID", "0") != "0":
        raise NpukitError("SLURM started npukit launch more than once on this node: use srun --ntasks-per-node=1.")
    if len(hosts) < 2:
        return None
    port = 20000 + (_number(environ, "SLURM_JOB_ID") or 0) % 20000
    # Set if NPUs are configured as gpu; see machine/slurm.py for other names
    ranks = _number(environ, "SLURM_GPUS_ON_NODE")
    return NodePlan(len(hosts), _number(environ, "SLURM_NODEID") or 0, hosts[0], port, ranks, "SLURM")


def from_modelarts(environ: Environ) -> NodePlan | None:
    """ModelArts, and other platforms on the Volcano scheduler, which sets the same VC_ variables."""
    hosts = [host.strip() for host in environ.get("VC_WORKER_HOSTS", "").split(",") if host.strip()]
    index = _number(environ, "VC_TASK_INDEX", "VK_TASK_INDEX")
    nodes = _number(environ, "MA_NUM_HOSTS", "VC_WORKER_NUM") or len(hosts)
    others = [name for name in environ if re.fullmatch(r"VC_(?!WORKER_).+_HOSTS", name)]
    if not hosts or index is None or (nodes < 2 and not others):
        return None
    if others:  # VC_TASK_INDEX counts within a task: master 0 and worker 0 would both be node 0
        if "MASTER_ADDR" in environ:  # Volcano's pytorch plug-in numbers all of them
            return None
        raise NpukitError(
            f"This Volcano job has several tasks (VC_WORKER_HOSTS and {', '.join(others)}), which its variables do not "
            "number: add the plug-in pytorch to the job, or give --nnodes, --node-rank and --master."
        )
    if nodes != len(hosts):
        raise NpukitError(
            f"The variables of this job contradict each other: VC_WORKER_HOSTS names {len(hosts)} hosts, MA_NUM_HOSTS "
            f"or VC_WORKER_NUM says {nodes}. Give --nnodes, --node-rank and --master."
        )
    source = "ModelArts" if "MA_NUM_HOSTS" in environ else "Volcano"
    return NodePlan(nodes, index, hosts[0], MODELARTS_PORT, _number(environ, "MA_NUM_GPUS"), source)


def from_ascend_job(environ: Environ) -> NodePlan | None:
    """MindCluster's AscendJob: WORLD_SIZE counts NPUs, RANK counts pods, LOCAL_RANK lists the NPUs of this pod."""
    if not is_pod_of_ascend_job(environ):
        return None
    ranks, everywhere = _number(environ, "LOCAL_WORLD_SIZE"), _number(environ, "WORLD_SIZE")
    here, pod = environ.get("LOCAL_RANK"), _number(environ, "RANK")
    of_list = len(here.split(",")) if here else ranks
    if not ranks or not everywhere or pod is None or of_list != ranks or everywhere % ranks:
        listed = ", ".join(f"{name}={environ[name]}" for name in POD_VARIABLES if name in environ)
        raise NpukitError(
            f"The variables of this pod contradict each other ({listed}): WORLD_SIZE counts the NPUs of an AscendJob, "
            "LOCAL_WORLD_SIZE those of this pod, RANK the pods. Correct them, or give --nnodes, --node-rank and "
            "--master."
        )
    if everywhere == ranks:
        return NodePlan(ranks=ranks, source="AscendJob")
    port = _number(environ, "MASTER_PORT") or DEFAULT_PORT
    return NodePlan(everywhere // ranks, pod, environ.get("MASTER_ADDR", ""), port, ranks, "AscendJob")


def is_pod_of_ascend_job(environ: Environ) -> bool:
    """Whether these variables are about a pod: those of a process name one local rank and come from its launcher.

    >>> is_pod_of_ascend_job({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0,1"})
    True
    """
    if "TORCHELASTIC_RUN_ID" in environ or not environ.get("MASTER_ADDR"):
        return False
    local = environ.get("LOCAL_RANK", "")
    return "," in local or ("LOCAL_WORLD_SIZE" in environ and (not local or environ["LOCAL_WORLD_SIZE"] == "1"))


def is_rank(environ: Environ) -> bool:
    """Whether a launcher such as torchrun started this process as one of its ranks.

    >>> is_rank({"LOCAL_RANK": "3", "RANK": "11", "WORLD_SIZE": "16"})
    True
    """
    return "LOCAL_RANK" in environ and not is_pod_of_ascend_job(environ)


def from_kubernetes(environ: Environ) -> NodePlan | None:
    """Kubeflow's PyTorchJob and TrainJob: torchrun's own PET_ variables, or node numbers in RANK and WORLD_SIZE."""
    if "LOCAL_RANK" in environ or "LOCAL_WORLD_SIZE" in environ:  # variables of a process, not of a node
        return None
    nodes = _number(environ, "PET_NNODES", "WORLD_SIZE")
    rank = _number(environ, "PET_NODE_RANK", "RANK")
    master = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR")
    if nodes is None or rank is None or not master or nodes < 2:
        return None
    port = _number(environ, "PET_MASTER_PORT", "MASTER_PORT") or DEFAULT_PORT
    variable = "PET_NNODES" if "PET_NNODES" in environ else "WORLD_SIZE"
    source = f"Kubernetes, {variable} counts nodes"
    return NodePlan(nodes, rank, master, port, _number(environ, "PET_NPROC_PER_NODE"), source)


# Schedulers with unmistakable variables; Kubeflow's are also set by hand.
SCHEDULERS: tuple[Callable[[Environ], NodePlan | None], ...] = (from_modelarts, from_slurm, from_ascend_job)


def from_environment(environ: Environ) -> NodePlan:
    """The nodes of a scheduler, otherwise one node; contradictory variables are refused."""
    if is_rank(environ):
        return NodePlan()
    plans = [plan for scheduler in SCHEDULERS if (plan := scheduler(environ))]
    for first, second in itertools.pairwise(plans):
        if (first.nodes, first.rank) != (second.nodes, second.rank):
            claims = " and ".join(f"{plan.source} says node {plan.rank} of {plan.nodes}" for plan in (first, second))
            raise NpukitError(
                f"The variables of this job contradict each other: {claims}. Give --nnodes, --node-rank and --master."
            )
    return next(iter(plans), None) or from_kubernetes(environ) or NodePlan()


def from_hostfile(text: str, names_of_this_host: Collection[str]) -> NodePlan:
    """A file with one host per line, as for DeepSpeed and MPI: `worker-1 slots=8`. The first host is node 0."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    hosts = [words for words in lines if words]
    if not hosts:
        raise NpukitError("The hostfile names no host: write one per line, such as `worker-1 slots=8`.")
    for rank, (host, *options) in enumerate(hosts):
        if host in names_of_this_host:
            slots = [option.removeprefix("slots=") for option in options if option.startswith("slots=")]
            if slots and not slots[0].isdigit():
                raise NpukitError(f"The hostfile says slots={slots[0]} for {host}: that must be a number.")
            return NodePlan(len(hosts), rank, hosts[0][0], ranks=int(slots[0]) if slots else None, source="hostfile")
    listed = ", ".join(words[0] for words in hosts)
    raise NpukitError(f"This host is not in the hostfile, which names {listed}: add it, or give --node-rank.")


def parse_master(text: str) -> tuple[str, int]:
    """Address and port of node 0.

    >>> parse_master("10.0.0.1:29500")
    ('10.0.0.1', 29500)
    """
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise NpukitError(f"--master {text} is not ADDRESS:PORT, such as 10.0.0.1:29500.")
    return address.strip("[]"), int(port)


def _number(environ: Environ, *names: str) -> int | None:
    for name in names:
        if (value := environ.get(name, "")).isdigit():
            return int(value)
    return None
