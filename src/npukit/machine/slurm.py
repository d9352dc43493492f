"""The NPUs that SLURM assigned to a job on this node.

SLURM has no plug-in for NPUs. If a site calls them `gpu`, SLURM sets variables; if it defines `GresTypes=npu`, only
`scontrol show job --details` tells which they are (tried with SLURM 22.05).
"""

from __future__ import annotations

import re

from npukit.errors import NpukitError
from npukit.machine.machine import Machine

_GRES = re.compile(r"\b(?:npu|ascend\w*|gpu)(?::[\w.-]+)?:(\d+)(?:\((?:IDX:([\d,-]+)|CNT:\d+)\))?", re.IGNORECASE)


def cards_of_job(machine: Machine, there: int) -> tuple[int, ...] | None:
    """The cards of this job on this node, out of `there`; None if SLURM does not assign cards.

    >>> cards_of_job(Machine(environ={"SLURM_JOB_ID": "7", "SLURM_STEP_GPUS": "2,3"}), 8)
    (2, 3)
    """
    environ = machine.environ
    job, node = environ.get("SLURM_JOB_ID", ""), environ.get("SLURMD_NODENAME", "")
    if not job:
        return None
    if listed := environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS"):
        return numbers_of(listed)
    details = machine.ask("scontrol", "show", "job", "--details", job, seconds=10.0).output
    match = _GRES.search(_gres_of(node, details))
    if not match:
        return None
    count, numbers = int(match[1]), match[2]
    if not numbers and count < there:
        raise NpukitError(
            f"SLURM gave this job {count} of the {there} NPUs of {node}, but does not say which: set "
            "ASCEND_RT_VISIBLE_DEVICES, or let an administrator add File=/dev/davinci[0-7] to gres.conf."
        )
    return numbers_of(numbers) if numbers else tuple(range(there))


def numbers_of(text: str) -> tuple[int, ...]:
    """Expand SLURM's short form of a list of numbers, in ascending order.

    >>> numbers_of("0-1,5")
    (0, 1, 5)
    """
    ranges = [part.partition("-") for part in text.split(",") if part.replace("-", "").isdecimal()]
    return tuple(sorted({n for first, _, last in ranges for n in range(int(first), int(last or first) + 1)}))


def _gres_of(node: str, details: str) -> str:
    """A node's resources. Nodes that are alike share one line: `Nodes=n[1-2] CPU_IDs=0-3 Mem=0 GRES=npu:4(IDX:0-3)`."""
    for names, gres in re.findall(r"^\s+Nodes=(\S+) .*GRES=(\S*)", details, re.MULTILINE):
        if node in expand_hosts(names):
            return str(gres)
    return ""


def expand_hosts(text: str) -> list[str]:
    """Expand SLURM's short form of a list of hosts.

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
            if not first.isdecimal() or not (last or first).isdecimal():
                raise NpukitError(f"SLURM's list of nodes cannot be read: {text}.")
            for number in range(int(first), int(last or first) + 1):
                hosts += expand_hosts(f"{prefix}{number:0{len(first)}}{suffix}")
    return hosts
