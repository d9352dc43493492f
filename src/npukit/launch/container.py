"""Containers that see NPUs, or simulate them: the docker command, a compose file, a Kubernetes job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.facts.compatibility import cann_image
from npukit.machine import Machine
from npukit.machine.cpus import numbers_of
from npukit.machine.npus import MANAGEMENT_FILES, card_numbers

IMAGE = cann_image()
SIMULATED_IMAGE = "npukit-sim"  # what the Dockerfile of this project builds
SHARED_MEMORY_PER_CARD = 16  # GiB: data loader workers and HCCL exchange tensors there
HOST_PARTS = (
    "/usr/local/Ascend/driver",  # libraries that must match the kernel module
    "/usr/local/dcmi",  # used by npu-smi
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/etc/ascend_install.info",  # tells CANN where the driver is
    "/etc/hccn.conf",  # addresses of the cards' own network ports, for HCCL between machines
)
NEEDED_PARTS = HOST_PARTS[:3] + HOST_PARTS[4:5]  # listed even if this machine has no card


@dataclass(frozen=True)
class Container:
    """A container that uses some of a machine's cards."""

    image: str
    cards: tuple[int, ...]
    devices: tuple[str, ...]
    mounts: tuple[str, ...]
    workdir: str
    command: tuple[str, ...] = ("bash",)
    for_another_machine: bool = False  # this machine has no card
    simulated: bool = False

    @property
    def shared_memory(self) -> int:
        """In GiB."""
        return SHARED_MEMORY_PER_CARD * max(1, len(self.cards))


def parse_numbers(text: str) -> tuple[int, ...]:
    """Numbers of NPUs.

    >>> parse_numbers("0,2-3")
    (0, 2, 3)
    """
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise NpukitError(f"--visible-devices {text} is not a list of NPUs, such as 0,1 or 0-7.")
    cards = numbers_of(text)
    if not cards:
        raise NpukitError(f"--visible-devices {text} contains no NPU: write a range upwards, such as 0-7.")
    return tuple(sorted(cards))


def plan_container(
    image: str = IMAGE, cards: Sequence[int] = (), command: Sequence[str] = (), machine: Machine | None = None
) -> Container:
    """The container for `cards` of a machine, or for all its cards; on a machine without cards, for another one."""
    machine = machine or Machine()
    installed = card_numbers(machine)
    missing = [card for card in cards if installed and card not in installed]
    if missing:
        known = ", ".join(map(str, installed))
        raise NpukitError(f"There is no card {missing[0]} on this machine, which has {known}.")
    chosen = tuple(cards or installed or (0,))
    devices = tuple(f"/dev/{name}" for name in (*(f"davinci{card}" for card in chosen), *MANAGEMENT_FILES))
    mounts = tuple(part for part in HOST_PARTS if machine.exists(part)) if installed else NEEDED_PARTS
    return Container(image, chosen, devices, mounts, str(Path.cwd()), tuple(command) or ("bash",), not installed)


def plan_simulated(image: str = SIMULATED_IMAGE, command: Sequence[str] = ()) -> Container:
    """A container with simulated NPUs, which needs nothing of the machine.

    >>> plan_simulated(command=["pytest", "--npu-sim"]).devices
    ()
    """
    return Container(image, (), (), (), str(Path.cwd()), tuple(command) or ("bash",), simulated=True)


def docker(container: Container) -> list[str]:
    """The command that starts it."""
    command = ["docker", "run", "-it", "--rm", "--network", "host", "--shm-size", f"{container.shared_memory}g"]
    for device in container.devices:
        command += ["--device", device]
    for part in container.mounts:
        command += ["-v", f"{part}:{part}:ro"]
    work = container.workdir
    return [*command, "-v", f"{work}:{work}", "-w", work, container.image, *container.command]


def docker_text(container: Container) -> str:
    """The same with one option per line."""
    words = docker(container)
    lines: list[list[str]] = [words[:4]]
    for word in words[4 : -1 - len(container.command)]:
        if word.startswith("-"):
            lines.append([])
        lines[-1].append(word)
    lines.append(words[-1 - len(container.command) :])
    return _note(container) + " \\\n    ".join(map(shlex.join, lines))


def compose(container: Container) -> str:
    """A compose file with this container as its only service."""
    service = {
        "image": container.image,
        "command": list(container.command),
        "network_mode": "host",
        "shm_size": f"{container.shared_memory}g",
        **({"devices": [f"{device}:{device}" for device in container.devices]} if container.devices else {}),
        "volumes": [f"{part}:{part}:ro" for part in container.mounts] + [f"{container.workdir}:{container.workdir}"],
        "working_dir": container.workdir,
        "stdin_open": True,
        "tty": True,
    }
    return _note(container) + _yaml({"services": {"npu": service}})


def kubernetes(container: Container) -> str:
    """A job for the Volcano scheduler; Ascend's device plugin hands out the cards and mounts the driver."""
    cards = {"huawei.com/Ascend910": len(container.cards)}
    memory = {"medium": "Memory", "sizeLimit": f"{container.shared_memory}Gi"}
    pod = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "train",
                "image": container.image,
                "command": list(container.command),
                "workingDir": container.workdir,
                **({} if container.simulated else {"resources": {"requests": cards, "limits": dict(cards)}}),
                "volumeMounts": [
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                    {"name": "work", "mountPath": container.workdir},
                ],
            }
        ],
        "volumes": [
            {"name": "shared-memory", "emptyDir": memory},
            {"name": "work", "hostPath": {"path": container.workdir}},
        ],
    }
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "npu-job"},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": 1,
            "plugins": {"svc": [], "env": []},  # set the VC_ variables that `npukit launch` reads
            "tasks": [{"name": "worker", "replicas": 1, "template": {"spec": pod}}],
        },
    }
    more = "# For several machines, raise replicas and minAvailable, and start `npukit launch` in each.\n"
    return _note(container) + more + _yaml(job)


def _note(container: Container) -> str:
    if container.simulated and container.image == SIMULATED_IMAGE:
        return f"# Build the image once, in a clone of npukit: make wheels && docker build -t {SIMULATED_IMAGE} .\n"
    if not container.for_another_machine:
        return ""
    return "# This machine has no NPU: this is for one with a card and its driver in the usual places.\n"


def _yaml(data: dict[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(data, sort_keys=False)
