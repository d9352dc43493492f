"""Parse npu-smi's output whatever its column widths: values may run together, columns or parts of lines be missing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")
USED_OF_TOTAL = re.compile(r"(\d+)\s*/\s*(\d+)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
CARD_NAME = re.compile(r"(?:NPU|Phy-ID)\s?\d+")
CPU_LIST = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")
LINK = re.compile(r"X|HCCS|HCCS_SW|SYS|PHB|PIX|PXB|SIO|NA|UB\w*")
# Even an idle chip shows the memory that the system holds, about 3 GiB on the cards seen so far.
IDLE_MEMORY_MIB = 4096


@dataclass(frozen=True)
class Chip:
    """One chip of the table. Values that a column does not show are None or empty."""

    npu: int
    chip: int = 0
    device: int | None = None  # the number that programs use, if the table shows it
    name: str = ""
    health: str = ""
    power_w: float | None = None
    temperature_c: float | None = None
    bus: str = ""
    cores_percent: float | None = None
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a chip."""

    npu: int
    chip: int
    pid: int
    name: str = ""
    memory_mib: int | None = None


@dataclass(frozen=True)
class Info:
    """Everything that `npu-smi info` shows."""

    version: str = ""
    chips: tuple[Chip, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Topology:
    """The links between cards, row by row, and the CPUs close to each."""

    names: tuple[str, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    cpus: tuple[str, ...] = ()

    @property
    def kinds(self) -> set[str]:
        """The kinds of links between different cards."""
        return {link for row in self.links for link in row if link not in ("X", "NA")}


def parse_info(text: str) -> Info:
    """Parse `npu-smi info`.

    >>> parse_info("| 0  910B3 | OK | 101.8 43 0 / 0 |").chips[0].health
    'OK'
    """
    version = re.search(r"Version:\s*([^|\s]+)", text)
    chips: list[Chip] = []
    processes: list[Process] = []
    in_processes = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        in_processes = in_processes or "Process id" in line
        numbers = [int(number) for number in re.findall(r"\b\d+\b", cells[0])]
        if "|" not in line or not numbers or len(cells) < 2:
            continue
        if in_processes:
            processes += _process(cells, numbers)
        elif BUS.search(cells[1]) and chips:
            chips[-1] = _second_row(chips[-1], cells, numbers)
        elif match := re.match(r"(\d+)\s+(\S.*)", cells[0]):
            chips.append(_first_row(int(match[1]), match[2], cells))
    return Info(version[1] if version else "", tuple(chips), tuple(processes))


def _first_row(npu: int, name: str, cells: list[str]) -> Chip:
    measured = USED_OF_TOTAL.sub("", cells[2]).split() if len(cells) > 2 else []
    power, temperature, *_ = [*measured, "", ""]
    return Chip(npu, name=name.strip(), health=cells[1], power_w=_number(power), temperature_c=_number(temperature))


def _second_row(chip: Chip, cells: list[str], numbers: list[int]) -> Chip:
    text = cells[2] if len(cells) > 2 else ""
    memories = [(int(used), int(total)) for used, total in USED_OF_TOTAL.findall(text)]
    used, total = next((pair for pair in reversed(memories) if pair[1]), (None, None))
    cores = USED_OF_TOTAL.sub("", text).split()
    bus = BUS.search(cells[1])
    return replace(
        chip,
        chip=numbers[0],
        device=numbers[1] if len(numbers) > 1 else None,
        bus=bus[0] if bus else "",
        cores_percent=_number(cores[0]) if cores else None,
        memory_used_mib=used,
        memory_total_mib=total,
    )


def _process(cells: list[str], numbers: list[int]) -> list[Process]:
    if not cells[1].isdecimal():
        return []
    name = cells[2] if len(cells) > 2 else ""
    memory = int(cells[3]) if len(cells) > 3 and cells[3].isdecimal() else None
    return [Process(numbers[0], numbers[1] if len(numbers) > 1 else 0, int(cells[1]), name, memory)]


def _number(text: str) -> float | None:
    match = NUMBER.fullmatch(text)
    return float(match[0]) if match else None


def parse_topology(text: str) -> Topology:
    """Parse `npu-smi info -t topo`."""
    names, links, cpus = [], [], []
    for line in text.splitlines():
        name = CARD_NAME.match(line.strip())
        cells = line.strip()[name.end() :].split() if name else []
        if name and cells and LINK.fullmatch(cells[0]):
            near = cells[-1] if CPU_LIST.fullmatch(cells[-1]) else ""
            names.append(name[0].replace(" ", ""))
            links.append(tuple(cell for cell in cells if LINK.fullmatch(cell)))
            cpus.append(near)
    return Topology(tuple(names), tuple(links), tuple(cpus))


def parse_fields(text: str) -> dict[str, str]:
    """Parse `npu-smi info -t board`: one `name : value` per line."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs if name.strip()}
