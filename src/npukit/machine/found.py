"""What the probes found on a machine, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from npukit.machine.installed import Cann, Driver
from npukit.machine.npu_smi import Chip, Info, Topology
from npukit.machine.npus import VISIBLE, DeviceFile, visible_among


@dataclass(frozen=True)
class MachineState:
    """The complete state of a machine."""

    environ: Mapping[str, str]
    simulated: bool = False
    in_container: bool = False
    npus_on_bus: int = 0
    gpus: tuple[str, ...] = ()
    device_files: tuple[DeviceFile, ...] = ()
    held_by_container: tuple[str, ...] = ()  # the output of npu-list
    driver: Driver | None = None
    smi: Info = field(default_factory=Info)
    smi_failure: str = ""  # npu-smi's error message, if it failed
    smi_installed: bool = False
    smi_late: bool = False  # npu-smi did not answer in time, which says nothing about the cards
    board: Mapping[str, str] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    canns: tuple[Cann, ...] = ()
    libraries_of: str = ""  # the CANN folder that comes first in LD_LIBRARY_PATH
    operators_of: str = ""  # the CANN folder that ASCEND_OPP_PATH is in
    stub_of_driver: str = ""  # a folder of LD_LIBRARY_PATH that hides the driver's library behind one to link with
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    torch_wanted: str = ""  # the torch version that torch_npu requires
    torch_is_for_cuda: bool = False
    foreign_wheels: Mapping[str, str] = field(default_factory=dict)  # packages, and what they were built for
    missing_library: str | None = None  # the dynamic linker's complaints; empty if it found everything, None if unknown
    shared_memory: int | None = None
    memory: int | None = None
    disk_free: int | None = None
    open_files: int | None = None  # how many this process may have
    cpus: frozenset[int] = frozenset()  # CPUs that this process may run on
    numa_nodes: int = 0
    interfaces: tuple[str, ...] = ()  # network interfaces that are up
    ports_in_use: frozenset[int] = frozenset()

    @property
    def chips(self) -> tuple[Chip, ...]:
        return self.smi.chips

    @property
    def visible_chips(self) -> tuple[Chip, ...]:
        """The chips that ASCEND_RT_VISIBLE_DEVICES makes visible in this shell."""
        numbers = visible_among(len(self.chips), self.environ.get(VISIBLE))
        return tuple(self.chips[number] for number in numbers)

    @property
    def cann(self) -> Cann | None:
        """The installation in use, or else the newest."""
        return next(iter(self.canns), None)

    @property
    def card_files(self) -> tuple[DeviceFile, ...]:
        return tuple(file for file in self.device_files if file.name.removeprefix("davinci").isdecimal())

    @property
    def has_npus(self) -> bool:
        return bool(self.simulated or self.npus_on_bus or self.card_files or self.chips)
