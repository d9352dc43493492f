"""The state of a machine's devices: its NPUs, or else its GPUs, or else its CPU."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from npukit.machine.machine import Machine
from npukit.machine.npu_smi import Info, Topology, parse_info, parse_topology
from npukit.machine.npus import npus

GPU_FIELDS = "index,name,memory.used,memory.total,temperature.gpu,power.draw,utilization.gpu,pci.bus_id"
PROCESS_FIELDS = "gpu_bus_id,pid,process_name,used_memory"


@dataclass(frozen=True)
class DeviceStatus:
    """One device. Unknown values are None or empty."""

    number: int
    name: str
    place: str = ""  # the NPU and chip, or the bus address
    health: str = ""
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    busy_percent: float | None = None
    processes: tuple[str, ...] = ()


@dataclass(frozen=True)
class MachineStatus:
    """All devices of one kind, and the links between them."""

    kind: Literal["npu", "gpu", "cpu"]
    devices: tuple[DeviceStatus, ...]
    topology: Topology = field(default_factory=Topology)
    simulated: bool = False
    trouble: str = ""  # why some values are missing


def status(machine: Machine | None = None) -> MachineStatus:
    """The devices that this machine can train on.

    >>> status().devices[0].name
    '910B3'
    """
    machine = machine or Machine()
    simulated = npus(machine).simulated
    with ThreadPoolExecutor(max_workers=4) as pool:
        ask = [
            pool.submit(machine.ask, "npu-smi", "info", seconds=5),
            pool.submit(machine.ask, "npu-smi", "info", "-t", "topo", seconds=5),
            pool.submit(
                machine.ask, "nvidia-smi", f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits", seconds=5
            ),
            pool.submit(
                machine.ask, "nvidia-smi", f"--query-compute-apps={PROCESS_FIELDS}", "--format=csv,noheader", seconds=5
            ),
        ]
        info, topology, gpus, processes = (answer.result() for answer in ask)
    parsed = parse_info(info.output)
    if parsed.chips:
        return MachineStatus("npu", tuple(_npus(parsed)), parse_topology(topology.output), simulated)
    files = machine.glob("/dev/davinci[0-9]*")
    if files:
        reason = "did not answer in time" if info.late else info.output.strip().partition("\n")[0] or "is not installed"
        devices = tuple(DeviceStatus(number, "NPU", machine.shown(path)) for number, path in enumerate(files))
        return MachineStatus("npu", devices, trouble=f"npu-smi: {reason}. See `npukit doctor`.")
    if gpus.good and (devices := _gpus(gpus.output, processes.output)):
        return MachineStatus("gpu", devices)
    return MachineStatus("cpu", (_cpu(machine),))


def _npus(info: Info) -> list[DeviceStatus]:
    result = []
    for number, chip in enumerate(info.chips):
        mine = [process for process in info.processes if (process.npu, process.chip) == (chip.npu, chip.chip)]
        users = tuple(f"{process.name or '?'} (pid {process.pid}, {process.memory_mib or '?'} MiB)" for process in mine)
        result.append(
            DeviceStatus(
                number if chip.device is None else chip.device,
                chip.name,
                f"NPU {chip.npu} chip {chip.chip}",
                chip.health,
                chip.memory_used_mib,
                chip.memory_total_mib,
                chip.temperature_c,
                chip.power_w,
                chip.cores_percent,
                users,
            )
        )
    return result


def _gpus(table: str, processes: str) -> tuple[DeviceStatus, ...]:
    users = [[cell.strip() for cell in line.split(",")] for line in processes.splitlines()]
    result = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(GPU_FIELDS.split(",")) or not cells[0].isdecimal():
            continue
        used, total, temperature, power, busy = (_number(cell) for cell in cells[2:7])
        mine = tuple(
            f"{user[2]} (pid {user[1]}, {user[3]})" for user in users if len(user) == 4 and user[0] == cells[7]
        )
        result.append(
            DeviceStatus(
                int(cells[0]),
                cells[1],
                cells[7],
                memory_used_mib=None if used is None else int(used),
                memory_total_mib=None if total is None else int(total),
                temperature_c=temperature,
                power_w=power,
                busy_percent=busy,
                processes=mine,
            )
        )
    return tuple(result)


def _number(text: str) -> float | None:
    match = re.fullmatch(r"\d+(?:\.\d+)?", text)
    return float(text) if match else None


def _cpu(machine: Machine) -> DeviceStatus:
    text = machine.read("/proc/cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    cores = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    sizes = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE))
    total = int(sizes["MemTotal"]) // 1024 if "MemTotal" in sizes else None
    used = total - int(sizes["MemAvailable"]) // 1024 if total and "MemAvailable" in sizes else None
    label = f"{name[1].strip() if name else 'CPU'}, {cores} cores"
    return DeviceStatus(0, label, memory_used_mib=used, memory_total_mib=total)
