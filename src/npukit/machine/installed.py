"""What is installed on a machine: the NPU driver, CANN, Python packages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from npukit.facts.target import Target
from npukit.facts.torch_npu import NAMES
from npukit.facts.versions import key
from npukit.machine.machine import Machine

TAG = re.compile(r"^Tag: ([\w.]+)-([\w.]+)-([\w.]+)\s*$", re.MULTILINE)
HAL = "libascend_hal.so"  # the driver's interface, which containers sometimes mount without the files around it
HAL_FOLDERS = ("lib64", "lib64/driver", "lib64/common")
PROCESSORS = ("x86_64", "aarch64")
PACKAGES = ("torch", "torch_npu", "transformers", "accelerate", "peft", "deepspeed", "numpy")


@dataclass(frozen=True)
class Driver:
    """The NPU driver and firmware. Fields that the files do not contain are empty."""

    folder: str
    version: str
    hal_version: str = ""
    firmware: str = ""
    firmware_limits: str = ""


@dataclass(frozen=True)
class Cann:
    """A CANN installation."""

    folder: str
    version: str
    set_env: str
    in_use: bool  # its environment variables are set
    kernels: tuple[str, ...] = ()  # card families that kernels are installed for, such as ascend910b
    hal_limits: str = ""  # the driver version that it requires


def driver(machine: Machine) -> Driver | None:
    """The driver, as its own files describe it."""
    folder = machine.settings("/etc/ascend_install.info").get("Driver_Install_Path_Param", "/usr/local/Ascend")
    about = machine.settings(f"{folder}/driver/version.info")
    if not about and not any(machine.glob(f"{folder}/driver/{place}/{HAL}") for place in HAL_FOLDERS):
        return None
    firmware = machine.settings(f"{folder}/firmware/version.info")
    return Driver(
        f"{folder}/driver",
        about.get("package_version") or about.get("Version", ""),
        about.get("ascendhal_version", ""),
        firmware.get("package_version") or firmware.get("Version", ""),
        about.get("compatible_version_fw", ""),
    )


def canns(machine: Machine) -> tuple[Cann, ...]:
    """Every CANN installation: the one in use first, then the newest."""
    given = [machine.environ[name] for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if machine.environ.get(name)]
    homes = ["/usr/local/Ascend", f"{machine.environ.get('HOME', '/root')}/Ascend"]
    patterns = [f"{home}/{part}" for home in homes for part in ("cann-[0-9]*", "cann", "ascend-toolkit/[0-9l]*")]
    folders = [machine.path(name) for name in given] + [path for pattern in patterns for path in machine.glob(pattern)]
    by_place: dict[str, Cann] = {}
    for folder in folders:
        cann = _cann(machine, machine.shown(folder), in_use=machine.shown(folder) in given)
        if cann:
            by_place.setdefault(str(folder.resolve()), cann)
    return tuple(sorted(by_place.values(), key=lambda cann: (cann.in_use, key(cann.version)), reverse=True))


def cann_in(machine: Machine, canns: Sequence[Cann], variable: str) -> str:
    """The folder of the CANN that a variable with paths names first; empty if none."""
    places = {cann.folder: machine.path(cann.folder).resolve() for cann in canns}
    for entry in filter(None, machine.environ.get(variable, "").split(":")):
        path = machine.path(entry).resolve()
        if folder := next((folder for folder, place in places.items() if path.is_relative_to(place)), ""):
            return folder
    return ""


def stub_of_driver(machine: Machine) -> str:
    """The folder of LD_LIBRARY_PATH whose libascend_hal.so stands for the driver's; empty if the driver's is first.

    CANN brings such a library to link with on machines without a driver: no card answers it.
    """
    entries = filter(None, machine.environ.get("LD_LIBRARY_PATH", "").split(":"))
    first = next((entry for entry in entries if machine.exists(f"{entry}/{HAL}")), "")
    return first if {"stub", "devlib"} & {*first.split("/")} else ""


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


def packages(machine: Machine) -> tuple[dict[str, str], str]:
    """The versions of the relevant packages, and the torch version that torch_npu requires."""
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


def foreign_wheels(machine: Machine) -> dict[str, str]:
    """Packages that were built for another processor or Python than this one, and which."""
    python = f"cp{''.join(machine.python.split('.')[:2])}"
    foreign: dict[str, str] = {}
    for package in ("torch", "torch_npu"):
        wheels = f"{package}-*.dist-info/WHEEL"
        infos = [info for folder in machine.python_paths for info in sorted(folder.glob(wheels))]
        text = infos[0].read_text(encoding="utf-8", errors="replace") if infos and infos[0].is_file() else ""
        tags = [(tag[1], tag[2], tag[3]) for tag in TAG.finditer(text)]
        processors = {processor for *_, platform in tags for processor in PROCESSORS if platform.endswith(processor)}
        here = {processor for processor in PROCESSORS if machine.processor.lower() == processor}
        pythons = {tag for tag, abi, _ in tags if tag.startswith("cp") and abi != "abi3"}
        if processors and here and not processors & here:
            foreign[package] = " and ".join(sorted(processors))
        elif len(pythons) == len(tags) and pythons and python not in pythons:
            foreign[package] = "Python " + " and ".join(sorted(f"{tag[2]}.{tag[3:]}" for tag in pythons))
    return foreign


def torch_is_for_cuda(machine: Machine) -> bool:
    """Whether the installed torch is a CUDA build."""
    torch = next((folder / "torch" for folder in machine.python_paths if (folder / "torch").is_dir()), None)
    return torch is not None and (torch / "lib" / "libc10_cuda.so").exists()


def installed_target() -> Target:
    """The installed torch_npu and what belongs to it; the newest known release if it is not installed."""
    try:
        version = metadata.version("torch_npu").split("+")[0]
    except metadata.PackageNotFoundError:
        version = ""
    return Target.of(torch_npu=version if version and NAMES.nearest(version) else "")
