"""Examine a machine by reading files and running programs. A probe may find nothing, but none of them fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from npukit.machine import cpus, installed, network, npus
from npukit.machine.found import MachineState
from npukit.machine.machine import Machine, ProgramResult
from npukit.machine.npu_smi import parse_fields, parse_info, parse_topology

# The libraries that torch_npu links. The dynamic linker is asked, because only it knows where it searches.
LIBRARIES = ("libascendcl.so", "libhccl.so", "libge_runner.so", "libgraph.so", "libacl_op_compiler.so")
LOAD_LIBRARIES = "import ctypes\nfor library in {libraries}: ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)"


def probe(machine: Machine) -> MachineState:
    """Everything that can be found out about a machine within about a second."""
    simulated = npus.npus(machine).simulated
    # The simulated npu-smi is a Python program and starts more slowly than the real one.
    seconds = 5.0 if simulated else 1.0
    with ThreadPoolExecutor(max_workers=7) as pool:
        questions = {
            "info": pool.submit(machine.ask, "npu-smi", "info", seconds=seconds),
            "topology": pool.submit(machine.ask, "npu-smi", "info", "-t", "topo", seconds=seconds),
            "gpus": pool.submit(machine.ask, "nvidia-smi", "-L"),
            "disk": pool.submit(machine.ask, "df", "-Pk", "."),
        }
        if not simulated:
            questions["board"] = pool.submit(machine.ask, "npu-smi", "info", "-t", "board", "-i", "0")
            questions["list"] = pool.submit(machine.ask, "npu-list")
        packages, torch_wanted = installed.packages(machine)
        if "torch_npu" in packages:
            questions["libraries"] = pool.submit(_load_libraries, machine)
        machine_state = replace(_from_files(machine), simulated=simulated, packages=packages, torch_wanted=torch_wanted)
        answers = {name: question.result() for name, question in questions.items()}
    return replace(machine_state, **_from_answers(answers))


def _from_files(machine: Machine) -> MachineState:
    canns = installed.canns(machine)
    return MachineState(
        environ=machine.environ,
        python=machine.python,
        torch_is_for_cuda=installed.torch_is_for_cuda(machine),
        in_container=_in_container(machine),
        npus_on_bus=npus.on_bus(machine),
        device_files=npus.device_files(machine),
        driver=installed.driver(machine),
        canns=canns,
        libraries_of=installed.cann_in(machine, canns, "LD_LIBRARY_PATH"),
        operators_of=installed.cann_in(machine, canns, "ASCEND_OPP_PATH"),
        stub_of_driver=installed.stub_of_driver(machine),
        open_files=_open_files(machine),
        foreign_wheels=installed.foreign_wheels(machine),
        shared_memory=_shared_memory(machine),
        memory=_memory(machine),
        cpus=cpus.allowed(machine),
        numa_nodes=len(machine.glob("/sys/devices/system/node/node[0-9]*")),
        interfaces=network.interfaces(machine),
        ports_in_use=network.ports_in_use(machine),
    )


def _from_answers(answers: Mapping[str, ProgramResult]) -> dict[str, Any]:
    info, board, gpus = answers["info"], answers.get("board", ProgramResult()), answers["gpus"]
    smi = parse_info(info.output)
    failure = "" if smi.chips or info.code is None else next(iter(info.output.strip().splitlines()), "no output")
    names = re.findall(r"^GPU \d+: ([^(\n]+)", gpus.output, re.MULTILINE)
    return {
        "smi": smi,
        "smi_installed": info.code is not None or info.late,
        "smi_late": info.late,
        "smi_failure": failure.strip(),
        "board": parse_fields(board.output) if board.good else {},
        "topology": parse_topology(answers["topology"].output),
        "held_by_container": tuple(re.findall(r"davinci\d+", answers.get("list", ProgramResult()).output)),
        "gpus": tuple(name.strip() for name in names) if gpus.good else (),
        "disk_free": _disk_free(answers["disk"]),
        "missing_library": _missing_library(answers.get("libraries", ProgramResult())),
    }


def _in_container(machine: Machine) -> bool:
    if machine.exists("/.dockerenv") or machine.exists("/run/.containerenv"):
        return True
    return bool(re.search(r"docker|kubepods|containerd|lxc", machine.read("/proc/1/cgroup")))


def _load_libraries(machine: Machine) -> ProgramResult:
    code = LOAD_LIBRARIES.format(libraries=LIBRARIES)
    return machine.run([sys.executable, "-I", "-S", "-c", code], machine.environ, 1.0)


def _missing_library(answer: ProgramResult) -> str | None:
    match = re.search(r"OSError: (.+)", answer.output)
    return "" if answer.good else match[1].strip() if match else None


def _shared_memory(machine: Machine) -> int | None:
    mount = re.search(r"^\S+ /dev/shm tmpfs (\S+)", machine.read("/proc/mounts"), re.MULTILINE)
    if not mount:
        return None
    size = re.search(r"\bsize=(\d+)([kmg]?)", mount[1])
    if size:
        return int(size[1]) * {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}[size[2]]
    memory = _memory(machine)
    return memory // 2 if memory else None  # by default, tmpfs is limited to half of the memory


def _memory(machine: Machine) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _open_files(machine: Machine) -> int | None:
    match = re.search(r"^Max open files\s+(\d+)", machine.read("/proc/self/limits"), re.MULTILINE)
    return int(match[1]) if match else None


def _disk_free(answer: ProgramResult) -> int | None:
    fields = answer.output.strip().splitlines()[-1].split() if answer.good and answer.output.strip() else []
    return int(fields[3]) * 1024 if len(fields) > 3 and fields[3].isdecimal() else None
