"""Find out about a machine: read files, ask programs. Every probe may find nothing, and none of them fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from npukit.doctor.found import Cann, DeviceFile, Driver, Found
from npukit.doctor.npu_smi import parse_fields, parse_info, parse_topology
from npukit.facts.versions import key
from npukit.machine import Answer, Machine
from npukit.machine.npus import npus

ASCEND_PCI_VENDOR = "0x19e5"
ACCELERATOR_PCI_CLASS = "0x12"
SHARED_FILES = ("davinci_manager", "devmm_svm", "hisi_hdc")
PACKAGES = ("torch", "torch_npu", "transformers", "accelerate", "peft", "deepspeed", "numpy")
# What torch_npu's own library is linked with; asked of the dynamic linker, because only it knows where it looks.
LIBRARIES = ("libascendcl.so", "libhccl.so", "libge_runner.so", "libgraph.so", "libacl_op_compiler.so")
LOAD_LIBRARIES = "import ctypes\nfor library in {libraries}: ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)"


def probe(machine: Machine) -> Found:
    """Everything that can be found out about a machine within a second or so."""
    simulated = npus(machine).simulated
    # The simulated npu-smi is a Python program: it starts more slowly than the real one.
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
        packages, torch_wanted = _packages(machine)
        if "torch_npu" in packages:
            questions["libraries"] = pool.submit(_load_libraries, machine)
        found = replace(_from_files(machine), simulated=simulated, packages=packages, torch_wanted=torch_wanted)
        answers = {name: question.result() for name, question in questions.items()}
    return replace(found, **_from_answers(answers))


def _from_files(machine: Machine) -> Found:
    return Found(
        environ=machine.environ,
        python=machine.python,
        in_container=_in_container(machine),
        npus_on_bus=_on_bus(machine, ASCEND_PCI_VENDOR, ACCELERATOR_PCI_CLASS),
        device_files=_device_files(machine),
        driver=_driver(machine),
        canns=_canns(machine),
        shared_memory=_shared_memory(machine),
        memory=_memory(machine),
        cpus=_cpus(machine),
        numa_nodes=len(machine.glob("/sys/devices/system/node/node[0-9]*")),
        interfaces=_interfaces(machine),
        ports_in_use=_ports_in_use(machine),
    )


def _from_answers(answers: Mapping[str, Answer]) -> dict[str, Any]:
    info, board, gpus = answers["info"], answers.get("board", Answer()), answers["gpus"]
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
        "held_by_container": tuple(re.findall(r"davinci\d+", answers.get("list", Answer()).output)),
        "gpus": tuple(name.strip() for name in names) if gpus.good else (),
        "disk_free": _disk_free(answers["disk"]),
        "missing_library": _missing_library(answers.get("libraries", Answer())),
    }


def _in_container(machine: Machine) -> bool:
    if machine.exists("/.dockerenv") or machine.exists("/run/.containerenv"):
        return True
    return bool(re.search(r"docker|kubepods|containerd|lxc", machine.read("/proc/1/cgroup")))


def _on_bus(machine: Machine, vendor: str, kind: str) -> int:
    count = 0
    for device in machine.glob("/sys/bus/pci/devices/*"):
        path = machine.shown(device)
        if machine.read(f"{path}/vendor").strip() == vendor:
            count += machine.read(f"{path}/class").strip().startswith(kind)
    return count


def _device_files(machine: Machine) -> tuple[DeviceFile, ...]:
    cards = sorted(machine.glob("/dev/davinci[0-9]*"), key=lambda path: key(path.name))
    shared = [machine.path(f"/dev/{name}") for name in SHARED_FILES if machine.exists(f"/dev/{name}")]
    return tuple(DeviceFile(path.name, machine.may_use(path)) for path in [*cards, *shared])


def _driver(machine: Machine) -> Driver | None:
    folder = machine.settings("/etc/ascend_install.info").get("Driver_Install_Path_Param", "/usr/local/Ascend")
    driver = machine.settings(f"{folder}/driver/version.info")
    if not driver:
        return None
    firmware = machine.settings(f"{folder}/firmware/version.info")
    return Driver(
        f"{folder}/driver",
        driver.get("package_version") or driver.get("Version", ""),
        driver.get("ascendhal_version", ""),
        firmware.get("package_version") or firmware.get("Version", ""),
        driver.get("compatible_version_fw", ""),
    )


def _canns(machine: Machine) -> tuple[Cann, ...]:
    named = [machine.environ[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if machine.environ.get(name)]
    homes = ["/usr/local/Ascend", f"{machine.environ.get('HOME', '/root')}/Ascend"]
    patterns = [f"{home}/{part}" for home in homes for part in ("cann-[0-9]*", "cann", "ascend-toolkit/[0-9l]*")]
    folders = [machine.path(name) for name in named] + [path for each in patterns for path in machine.glob(each)]
    by_place: dict[str, Cann] = {}
    for folder in folders:
        cann = _cann(machine, machine.shown(folder), in_use=machine.shown(folder) in named)
        if cann:
            by_place.setdefault(str(folder.resolve()), cann)
    return tuple(sorted(by_place.values(), key=lambda cann: (cann.in_use, key(cann.version)), reverse=True))


def _cann(machine: Machine, folder: str, in_use: bool) -> Cann | None:
    infos = [machine.shown(path) for path in machine.glob(f"{folder}/*-linux/ascend_toolkit_install.info")]
    version = machine.settings(infos[0]).get("version", "") if infos else ""
    for part in ("toolkit", "compiler", "runtime"):
        version = version or machine.settings(f"{folder}/{part}/version.info").get("Version", "")
    if not version:
        return None
    runtime = machine.settings(f"{folder}/runtime/version.info")
    operators = machine.environ.get("ASCEND_OPP_PATH", f"{folder}/opp") if in_use else f"{folder}/opp"
    kernels = machine.glob(f"{operators}/built-in/op_impl/ai_core/tbe/kernel/ascend*")
    beside = f"{folder.rpartition('/')[0]}/set_env.sh"
    return Cann(
        folder,
        version,
        f"{folder}/set_env.sh" if machine.exists(f"{folder}/set_env.sh") else beside,
        in_use,
        tuple(path.name for path in kernels),
        runtime.get("required_driver_ascendhal_version", ""),
    )


def _packages(machine: Machine) -> tuple[dict[str, str], str]:
    versions: dict[str, str] = {}
    torch_wanted = ""
    for folder in machine.python_paths:
        for package in PACKAGES:
            for info in sorted(folder.glob(f"{package}-*.dist-info")) if package not in versions else ():
                versions[package] = info.name.removeprefix(f"{package}-").removesuffix(".dist-info")
                metadata = info / "METADATA"
                if package == "torch_npu" and metadata.is_file():
                    text = metadata.read_text(encoding="utf-8", errors="replace")
                    wanted = re.search(
                        r"^Requires-Dist: torch\s*\(?==\s*([\w.]+?)(?:\.\*)?[);\s]*$", text, re.MULTILINE
                    )
                    torch_wanted = wanted[1] if wanted else ""
    return versions, torch_wanted


def _load_libraries(machine: Machine) -> Answer:
    code = LOAD_LIBRARIES.format(libraries=LIBRARIES)
    return machine.run([sys.executable, "-I", "-S", "-c", code], machine.environ, 1.0)


def _missing_library(answer: Answer) -> str | None:
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
    return memory // 2 if memory else None  # tmpfs takes half of the memory where nothing is said


def _memory(machine: Machine) -> int | None:
    match = re.search(r"^MemTotal:\s+(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _disk_free(answer: Answer) -> int | None:
    fields = answer.output.strip().splitlines()[-1].split() if answer.good and answer.output.strip() else []
    return int(fields[3]) * 1024 if len(fields) > 3 and fields[3].isdecimal() else None


def _cpus(machine: Machine) -> frozenset[int]:
    match = re.search(r"^Cpus_allowed_list:\s*([\d,-]+)", machine.read("/proc/self/status"), re.MULTILINE)
    return numbers_of(match[1]) if match else frozenset()


def numbers_of(text: str) -> frozenset[int]:
    """The numbers of a list such as `0-2,8`."""
    numbers: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers.update(range(int(first), min(int(last or first), int(first) + 4096) + 1))
    return frozenset(numbers)


def _interfaces(machine: Machine) -> tuple[str, ...]:
    folders = machine.glob("/sys/class/net/*")
    up = [
        path.name for path in folders if machine.read(f"{machine.shown(path)}/operstate").strip() in ("up", "unknown")
    ]
    return tuple(name for name in up if name != "lo")


def _ports_in_use(machine: Machine) -> frozenset[int]:
    table = machine.read("/proc/net/tcp") + machine.read("/proc/net/tcp6")
    listening = re.findall(r"^\s*\d+: [0-9A-F]+:([0-9A-F]{4}) \S+ 0A ", table, re.MULTILINE)
    return frozenset(int(port, 16) for port in listening)
