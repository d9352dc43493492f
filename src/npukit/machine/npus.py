"""The NPUs that a process started now would see: the machine's own, or those of a shell with simulated ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from npukit.facts.cards import DEFAULT_CARD
from npukit.machine.machine import Machine
from npukit.machine.slurm import cards_of_job

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
SIMULATED = "NPUKIT_SIM_DEVICES"  # how many simulated NPUs a shell has, from `npukit sim env`
SIMULATED_CARD = "NPUKIT_SIM_CARD"
FILES = "/dev/davinci[0-9]*"
MANAGEMENT_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")  # without these no card can be opened
PCI_VENDOR = "0x19e5"
PCI_CLASS = "0x12"  # an accelerator


@dataclass(frozen=True)
class DeviceFile:
    """A file in /dev that using NPUs needs."""

    name: str
    usable: bool


@dataclass(frozen=True)
class Npus:
    """How many there are, and the numbers of those that ASCEND_RT_VISIBLE_DEVICES or SLURM leaves to this process."""

    count: int
    visible: tuple[int, ...]
    simulated: bool = False
    card: str = ""  # its model, where that is known without asking npu-smi


def npus(machine: Machine | None = None) -> Npus:
    """Find them.

    >>> npus(Machine(environ={"NPUKIT_SIM_DEVICES": "2"}))
    Npus(count=2, visible=(0, 1), simulated=True, card='910B3')
    """
    machine = machine or Machine()
    simulated = machine.environ.get(SIMULATED, "")
    # A simulated shell's processes load the simulated CANN, whatever cards the machine has.
    count = int(simulated) if simulated.isdecimal() else len(card_numbers(machine))
    card = machine.environ.get(SIMULATED_CARD, DEFAULT_CARD) if simulated else ""
    visible = visible_among(count, machine.environ.get(VISIBLE))
    if count and not simulated and VISIBLE not in machine.environ and (of_job := cards_of_job(machine, count)):
        visible = tuple(number for number in of_job if number < count)
    return Npus(count, visible, bool(simulated), card)


def visible_among(count: int, variable: str | None) -> tuple[int, ...]:
    """The cards that CANN shows: it reads up to the first thing that is no card, and wants ascending numbers.

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
    """The numbers of the machine's own cards, by their files in /dev."""
    numbers = [path.name.removeprefix("davinci") for path in machine.glob(FILES)]
    return sorted(int(number) for number in numbers if number.isdecimal())


def device_files(machine: Machine) -> tuple[DeviceFile, ...]:
    """The files of the cards, then those that all cards share."""
    names = [f"davinci{number}" for number in card_numbers(machine)]
    names += [name for name in MANAGEMENT_FILES if machine.exists(f"/dev/{name}")]
    return tuple(DeviceFile(name, machine.may_use(machine.path(f"/dev/{name}"))) for name in names)


def on_bus(machine: Machine) -> int:
    """How many Ascend accelerators are plugged in, whether or not there is a driver for them."""
    folders = [machine.shown(device) for device in machine.glob("/sys/bus/pci/devices/*")]
    ours = [folder for folder in folders if machine.read(f"{folder}/vendor").strip() == PCI_VENDOR]
    return sum(machine.read(f"{folder}/class").strip().startswith(PCI_CLASS) for folder in ours)
