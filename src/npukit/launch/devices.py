"""Chooses devices and makes the environment of processes that use them. No other module decides about devices.

A command calls `choose` and starts its processes with `Devices.environment()`. A process calls `torch_device` to get
its device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.facts.cards import card as find_card
from npukit.launch.script import AUTOLOAD, GIVEN
from npukit.machine import Machine
from npukit.machine.npus import SIMULATED, VISIBLE, Npus, npus, visible_among

if TYPE_CHECKING:
    import torch

Kind = Literal["npu", "cuda", "cpu"]
NAMES = {"npu": "NPU", "cuda": "GPU"}
SIMULATED_MEMORY = "NPUKIT_SIM_MEMORY_MIB"
SIMULATED_TRACE = "NPUKIT_SIM_TRACE"
POD_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
VISIBLE_BY = {"npu": VISIBLE, "cuda": "CUDA_VISIBLE_DEVICES"}


class Wanted(str, Enum):
    """What a user can ask for."""

    auto = "auto"
    npu = "npu"
    sim = "sim"
    cuda = "cuda"
    cpu = "cpu"


@dataclass(frozen=True)
class Devices:
    """The devices of a command's processes, one each."""

    kind: Kind  # torch's name for them
    count: int = 1  # how many are used; for the CPU, the number of processes
    visible: tuple[int, ...] = ()  # the numbers of the visible cards
    simulated: bool = False
    card: str = ""  # the model of the card, if known
    total: int = 0  # the number of cards of the machine

    def __str__(self) -> str:
        if self.kind == "cpu":
            return "the CPU"
        name = f"{self.count} {'simulated ' * self.simulated}{NAMES[self.kind]}{'s' * (self.count > 1)}"
        return name + (f" ({self.card})" if self.card else "")

    @property
    def has_bf16(self) -> bool:
        """Whether they support bf16, as far as that is known without a process on them."""
        return find_card(self.card).bf16 if self.card else True

    def environment(
        self,
        base: Mapping[str, str] | None = None,
        compute: Literal["full", "shapes"] | None = None,
        faults: Sequence[str] = (),
        trace: str | os.PathLike[str] | None = None,
        memory_mib: int | None = None,
    ) -> dict[str, str]:
        """The complete environment of a process that uses these devices and no others.

        `compute`, `faults`, `trace` and `memory_mib` are settings of simulated NPUs; those that are not given stay as
        they are in the shell.

        >>> subprocess.run([sys.executable, "train.py"], env=choose("cpu").environment())
        """
        variables = {**(os.environ if base is None else base), GIVEN: self.kind}
        if "," in variables.get("LOCAL_RANK", ""):  # the list of a pod of an AscendJob, not the rank of a process
            variables = {name: value for name, value in variables.items() if name not in POD_VARIABLES}
        if self.kind != "npu":
            variables |= {AUTOLOAD: "0", VISIBLE: ""}
        if self.kind == "cpu":
            variables["CUDA_VISIBLE_DEVICES"] = ""
        if not self.simulated:
            # Assigned by SLURM, which CANN does not know about
            if self.kind == "npu" and len(self.visible) < self.total:
                variables.setdefault(VISIBLE, ",".join(map(str, self.visible)))
            return variables
        from npukit.simulate import environment as simulated

        compute = compute or ("shapes" if variables.get("NPUKIT_SIM_COMPUTE") == "shapes" else "full")
        simulator = simulated(self.total, self.card, compute, faults, trace, base=variables)
        return {**simulator, SIMULATED_MEMORY: str(memory_mib)} if memory_mib else simulator

    def start_again_with(self, torch_npu: str) -> None:
        """Start this command again in an environment where simulated NPUs have this torch_npu; return if this is one.

        >>> choose("sim").start_again_with("2.7.1")
        """
        if not self.simulated:
            raise NpukitError(f"--torch-npu is for simulated NPUs, and this would run on {self}: add --device sim.")
        from npukit.simulate import other_torch

        other_torch.switch_to(torch_npu, "npukit", sys.argv[1:])


def choose(
    wanted: Wanted | str = Wanted.auto,
    count: int | None = None,
    card: str = DEFAULT_CARD,
    machine: Machine | None = None,
    suppose: bool = False,
) -> Devices:
    """The devices that `wanted` means on this machine and in this shell: `count` of them, or all visible ones.

    auto is an NPU, otherwise CUDA, otherwise the CPU. In a shell of `npukit sim env`, npu and auto are its simulated
    NPUs. Elsewhere NPUs are simulated only with sim, which makes `count` (or one) of `card`. With `suppose` the device
    need not exist, because only a plan is made for it.

    >>> choose("sim", count=2)
    Devices(kind='npu', count=2, visible=(0, 1), simulated=True, card='910B3', total=2)
    """
    wanted, machine = Wanted(wanted), machine or Machine()
    if wanted is Wanted.sim:
        return _simulated(count, card, machine)
    if wanted in (Wanted.auto, Wanted.npu) and (installed := npus(machine)).visible:
        return _used(Devices("npu", 1, installed.visible, installed.simulated, installed.card, installed.count), count)
    if wanted in (Wanted.auto, Wanted.cuda) and (gpus := count_gpus(machine)):
        return _used(Devices("cuda", 1, tuple(range(gpus)), total=gpus), count)
    if wanted in (Wanted.auto, Wanted.cpu):
        return Devices("cpu", count or 1)
    if suppose:
        return Devices("npu" if wanted is Wanted.npu else "cuda", count or 1)
    raise NpukitError(_absent(wanted, machine))


def _simulated(count: int | None, card: str, machine: Machine) -> Devices:
    chosen = machine.environ.get(VISIBLE)
    # The numbers in the user's variables must exist: 4,5 needs six cards, of which two are visible.
    highest = max((int(number) for number in (chosen or "").split(",") if number.isdecimal()), default=-1)
    there = max(count or 1, highest + 1)
    simulated = Devices("npu", 1, visible_among(there, chosen), True, find_card(card).name, there)
    if not simulated.visible:
        raise NpukitError(_hidden(Npus(there, ()), chosen or ""))
    return _used(simulated, count)


def _used(devices: Devices, count: int | None) -> Devices:
    there = len(devices.visible)
    if count is not None and count > there:
        are_there = count <= devices.total
        more = f"set {VISIBLE_BY[devices.kind]}" if are_there else f"run `npukit sim env --devices {count}`"
        remedy = f"request fewer, or {more}" if are_there or devices.simulated else "request fewer"
        are = "is" if there == 1 else "are"
        raise NpukitError(f"{count} {NAMES[devices.kind]}s were requested, but {there} {are} visible: {remedy}.")
    return replace(devices, count=count or there)


def _absent(wanted: Wanted, machine: Machine) -> str:
    if wanted is Wanted.cuda:
        return "This machine has no CUDA device that torch can use: choose --device cpu or --device auto."
    found = npus(machine)
    if found.count:
        return _hidden(found, machine.environ.get(VISIBLE, ""))
    return (
        "This machine has no NPU: use --device sim for a simulated one, or run `npukit doctor` if it should have one."
    )


def _hidden(found: Npus, value: str) -> str:
    return f"{VISIBLE}={value!r} hides all {found.count} NPUs: unset it, or list their numbers in ascending order."


def count_gpus(machine: Machine) -> int:
    """How many CUDA devices torch can use. Another process asks torch, and only if there is a driver."""
    if not machine.glob("/dev/nvidia[0-9]*") and not machine.exists("/dev/kfd"):
        return 0
    code = "import torch; print(torch.cuda.device_count())"
    environment = {**machine.environ, AUTOLOAD: "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    count = done.stdout.strip()
    return int(count) if count.isdecimal() else 0


def torch_device() -> torch.device:
    """The device of this process: the one it was started with, otherwise torch's accelerator, otherwise the CPU.

    >>> torch.ones(3, device=torch_device())
    """
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = os.environ.get(GIVEN) or (accelerator.type if accelerator else "cpu")
    if kind == "cpu":
        return torch.device("cpu")
    module = getattr(torch, kind, None)
    if module is None or not module.is_available():
        raise NpukitError(f"torch finds no {NAMES[kind]} in this process: `npukit doctor` says why.")
    return torch.device(kind, local_rank() % module.device_count())


def local_rank() -> int:
    """The local rank of this process. In a pod of an AscendJob, LOCAL_RANK lists all local ranks."""
    rank = os.environ.get("LOCAL_RANK", "0")
    return int(rank) if rank.isdecimal() else 0


def is_simulated() -> bool:
    """Whether the NPUs of this process are simulated."""
    return SIMULATED in os.environ
