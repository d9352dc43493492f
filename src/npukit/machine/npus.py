"""The NPUs that a new process would see: the machine's own, or those of a shell with simulated NPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from npukit.facts.cards import DEFAULT_CARD
from npukit.machine.machine import Machine
from npukit.machine.slurm import cards_of_job

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
SIMULATED = "NPUKIT_SIM_DEVICES"  # number of simulated NPUs of a shell, set by `npukit sim env`
SIMULATED_CARD = "NPUKIT_SIM_CARD"
FILES = "/dev/davinci[0-9]*"
MANAGEMENT_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")  # no card can be opened without these
PCI_VENDOR = "0x19e5"
PCI_CLASS = "0x12"  # PCI class of accelerators


@dataclass(frozen=True)
class DeviceFile:
    """A file in /dev that programs need in order to use NPUs."""

    name: str
    usable: bool


@dataclass(frozen=True)
class Npus:
    """The number of NPUs, and those that ASCEND_RT_VISIBLE_DEVICES or SLURM leaves to this process."""

    count: int
    visible: tuple[int, ...]
    simulated: bool = False
    card: str = ""  # the model, if known without running npu-smi


def npus(machine: Machine | None = None) -> Npus:
    """Find them.

    >>> npus(Machine(environ={"NPUKIT_SIM_DEVICES": "2"}))
    Npus(count=2, visible=(0, 1), simulated=True, card='910B3')
    """
    machine = machine or Machine()
    simulated = machine.environ.get(SIMULATED, "")
    # Processes of a simulated shell load the simulated CANN, even if the machine has cards.
    count = int(simulated) if simulated.isdecimal() else len(card_numbers(machine))
    card = machine.environ.get(SIMULATED_CARD, DEFAULT_CARD) if simulated else ""
    visible = visible_among(count, machine.environ.get(VISIBLE))
    if count and not simulated and VISIBLE not in machine.environ and (of_job := cards_of_job(machine, count)):
        visible = tuple(number for number in of_job if number < count)
    return Npus(count, visible, bool(simulated), card)


def visible_among(count: int, variable: str | None) -> tuple[int, ...]:
    """The cards that CANN makes visible: it reads up to the first invalid entry, and requires ascending numbers.

    >>> visible_among(4, "1,3"), visible_among(4, "0, 1"), visible_among(4, "2,1"), visible_among(4, None)
    ((1, 3), (0,), (), (0, 1, 2, 3))
    """
    if variable is None:
        return tuple(range(count))
    numbers: list[int] = []
    for word in variable.split(","):
        if not (digits := re.match(r"\d+", word)) or int(digits[0]) >= count:
            break
        numbers.append(int(digits[0]))
        if digits[0] != word:
            break
    return tuple(numbers) if numbers == sorted(set(numbers)) else ()


def card_numbers(machine: Machine) -> list[int]:
    """The numbers of the machine's own cards, from their files in /dev."""
    numbers = [path.name.removeprefix("davinci") for path in machine.glob(FILES)]
    return sorted(int(number) for number in numbers if number.isdecimal())


def device_files(machine: Machine) -> tuple[DeviceFile, ...]:
    """The files of the cards, then those that all cards share."""
    names = [f"davinci{number}" for number in card_numbers(machine)]
    names += [name for name in MANAGEMENT_FILES if machine.exists(f"/dev/{name}")]
    return tuple(DeviceFile(name, machine.may_use(machine.path(f"/dev/{name}"))) for name in names)


def on_bus(machine: Machine) -> int:
    """The number of Ascend accelerators on the PCI bus, with or without a driver."""
    folders = [machine.shown(device) for device in machine.glob("/sys/bus/pci/devices/*")]
    ours = [folder for folder in folders if machine.read(f"{folder}/vendor").strip() == PCI_VENDOR]
    return sum(machine.read(f"{folder}/class").strip().startswith(PCI_CLASS) for folder in ours)
