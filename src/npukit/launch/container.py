"""Containers that see NPUs: the docker command for this machine, a compose file, a Kubernetes job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.facts.compatibility import cann_image

IMAGE = cann_image()
SHARED_MEMORY_PER_CARD = 16  # GiB: data loader workers and HCCL exchange tensors there
MANAGEMENT = ("davinci_manager", "devmm_svm", "hisi_hdc")  # without these no card can be opened
HOST_PARTS = (
    "/usr/local/Ascend/driver",  # libraries that must match the kernel's driver
    "/usr/local/dcmi",  # what npu-smi asks
    "/usr/local/bin/npu-smi",
    "/usr/local/sbin/npu-smi",
    "/etc/ascend_install.info",  # tells CANN where the driver is
    "/etc/hccn.conf",  # addresses of the cards' own network ports, for HCCL between machines
)
NEEDED_PARTS = HOST_PARTS[:3] + HOST_PARTS[4:5]  # named even where this machine has no card to look at


@dataclass(frozen=True)
class Container:
    """What a container needs to use some of a machine's cards."""

    image: str
    cards: tuple[int, ...]
    devices: tuple[str, ...]
    mounts: tuple[str, ...]
    workdir: str
    command: tuple[str, ...] = ("bash",)
    notes: tuple[str, ...] = field(default=())

    @property
    def shared_memory(self) -> int:
        """In GiB."""
        return SHARED_MEMORY_PER_CARD * len(self.cards)


def parse_cards(text: str) -> tuple[int, ...]:
    """Numbers of cards.

    >>> parse_cards("0,2-3")
    (0, 2, 3)
    """
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise NpukitError(f"--devices {text} is not a list of cards, such as 0,1 or 0-7.")
    cards: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cards.update(range(int(first), int(last or first) + 1))
    if not cards:
        raise NpukitError(f"--devices {text} names no card: a range goes upwards, such as 0-7.")
    return tuple(sorted(cards))


def plan_container(
    image: str = IMAGE, cards: Sequence[int] = (), command: Sequence[str] = (), root: Path = Path("/")
) -> Container:
    """The container for `cards` of the machine at `root`; for all its cards when none is named.

    On a machine without cards it is the container of a usual one, and says so.
    """
    there = sorted(int(file.name[7:]) for file in (root / "dev").glob("davinci[0-9]*"))
    missing = [card for card in cards if there and card not in there]
    if missing:
        known = ", ".join(map(str, there))
        raise NpukitError(f"There is no card {missing[0]} on this machine, which has {known}.")
    chosen = tuple(cards or there or (0,))
    devices = tuple(f"/dev/{name}" for name in (*(f"davinci{card}" for card in chosen), *MANAGEMENT))
    mounts = tuple(part for part in HOST_PARTS if (root / part[1:]).exists()) if there else NEEDED_PARTS
    notes = () if there else ("this machine has no card: written for one with its driver in the usual place",)
    return Container(image, chosen, devices, mounts, str(Path.cwd()), tuple(command) or ("bash",), notes)


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
    """The same for people: an option a line."""
    words = docker(container)
    lines: list[list[str]] = [words[:4]]
    for word in words[4 : -1 - len(container.command)]:
        if word.startswith("-"):
            lines.append([])
        lines[-1].append(word)
    lines.append(words[-1 - len(container.command) :])
    notes = [f"# {note}" for note in container.notes]
    return "\n".join([*notes, " \\\n    ".join(map(shlex.join, lines))])


def compose(container: Container) -> str:
    """A compose file with it as its one service."""
    service = {
        "image": container.image,
        "command": list(container.command),
        "network_mode": "host",
        "shm_size": f"{container.shared_memory}g",
        "devices": [f"{device}:{device}" for device in container.devices],
        "volumes": [f"{part}:{part}:ro" for part in container.mounts] + [f"{container.workdir}:{container.workdir}"],
        "working_dir": container.workdir,
        "stdin_open": True,
        "tty": True,
    }
    return _yaml({"services": {"npu": service}}, container.notes)


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
                "resources": {"requests": cards, "limits": dict(cards)},
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
            "plugins": {"svc": [], "env": []},  # set the VC_ variables by which npukit launch finds the other nodes
            "tasks": [{"name": "worker", "replicas": 1, "template": {"spec": pod}}],
        },
    }
    return _yaml(job, ("for more machines: raise replicas and minAvailable, and start `npukit launch` in each",))


def _yaml(data: dict[str, Any], notes: Sequence[str]) -> str:
    import yaml

    return "".join(f"# {note}\n" for note in notes) + yaml.safe_dump(data, sort_keys=False)
