"""Machines as file trees: what the probes of `npukit doctor` would read on them. Loaded with runpy by the tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from npukit.machine.machine import Machine, ProgramResult, run_program

CANN = "/usr/local/Ascend/ascend-toolkit/latest"
USER = 4711  # never the owner of the files, so that the group decides
TOPOLOGY_LEGEND = "\nLegend:\n\n  X    = Self\n  HCCS = Connection over HCCS.\n"


class Tree:
    """A machine's files and variables, and how it answers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ: dict[str, str] = {"PATH": "/usr/local/bin:/usr/bin", "HOME": "/root"}
        self.python = "3.11.9"
        self.in_group = True
        self.says(
            "df", "-Pk .", "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 9 9 900000000 1% /\n"
        )
        self.write("/proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n")
        self.write("/proc/meminfo", "MemTotal:       1056000000 kB\nMemAvailable:   1000000000 kB\n")
        self.write("/proc/self/status", "Name:\tpython\nCpus_allowed_list:\t0-191\n")
        self.write("/proc/cpuinfo", "processor : 0\nmodel name : Kunpeng-920\n\nprocessor : 1\n")
        self.write("/sys/class/net/eth0/operstate", "up\n")

    def write(self, path: str, text: str = "") -> Path:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def remove(self, path: str) -> None:
        target = self.root / path.lstrip("/")
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def says(self, program: str, arguments: str, output: str) -> None:
        """Let a program of the machine answer so when it is called with these arguments."""
        script = self.write(f"/usr/local/bin/{program}", '#!/bin/sh\nexec /bin/cat "$0.answers/${*:-nothing}"\n')
        script.chmod(0o755)
        self.write(f"/usr/local/bin/{program}.answers/{arguments or 'nothing'}", output)

    def installs(self, package: str, version: str, metadata: str = "") -> None:
        for old in (self.root / "site-packages").glob(f"{package}-*.dist-info"):
            shutil.rmtree(old)
        self.write(f"/site-packages/{package}-{version}.dist-info/METADATA", f"Name: {package}\n{metadata}")

    def run(self, command: Sequence[str], environ: Mapping[str, str], seconds: float) -> ProgramResult:
        if command[0] == sys.executable:
            folders = environ.get("LD_LIBRARY_PATH", "").split(":")
            if any((self.root / folder.lstrip("/") / "libhccl.so").exists() for folder in folders if folder):
                return ProgramResult("", 0)
            return ProgramResult("OSError: libhccl.so: cannot open shared object file: No such file or directory", 1)
        return run_program(command, {"PATH": "/usr/bin:/bin"}, 60)  # a loaded test machine is no slow npu-smi

    def machine(self) -> Machine:
        group = self.root.stat().st_gid
        return Machine(
            root=self.root,
            run=self.run,
            environ=self.environ,
            python=self.python,
            python_paths=[self.root / "site-packages"],
            user=USER,
            groups=frozenset([group] if self.in_group else []),
        )


def smi_info(chips: Sequence[tuple[str, str, str]], processes: str = "", per_npu: int = 1, used: int = 3318) -> str:
    """The table of `npu-smi info`, for (name, health, memory) of each chip."""
    lines = [
        "+" + "-" * 96 + "+",
        "| npu-smi 25.5.0                   Version: 25.5.0                                               |",
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        "+===========================+===============+====================================================+",
    ]
    for number, (name, health, memory) in enumerate(chips):
        npu, chip = divmod(number, per_npu)
        identity = f"{chip}     {number}" if per_npu > 1 else f"{chip}"
        memory = memory or f"{used} / 65536"
        lines += [
            f"| {npu:<6}{name:<20}| {health:<14}| {'101.8':<12}{'43':<18}{'0    / 0':<21}|",
            f"| {identity:<26}| 0000:{0xC1 + number:02X}:00.0  | 0           0    / 0          {memory:<21}|",
            "+===========================+===============+====================================================+",
        ]
    lines += [
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        "+===========================+===============+====================================================+",
        processes
        or "| No running processes found in NPU 0                                                            |",
    ]
    return "\n".join(lines) + "\n"


def topology(count: int, link: Callable[[int, int], str], prefix: str = "NPU") -> str:
    names = [f"{prefix}{number}" for number in range(count)]
    lines = ["       " + "       ".join([*names, "CPU Affinity"])]
    for row, name in enumerate(names):
        cells = ["X" if row == column else link(row, column) for column in range(count)]
        lines.append("       ".join([name, *cells, f"{row * 24}-{row * 24 + 23}"]))
    return "\n".join(lines) + "\n" + TOPOLOGY_LEGEND


def with_cards(tree: Tree, name: str = "910B3", count: int = 8, per_npu: int = 1) -> None:
    tree.write("/etc/ascend_install.info", "UserName=HwHiAiUser\nDriver_Install_Path_Param=/usr/local/Ascend\n")
    tree.write(
        "/usr/local/Ascend/driver/version.info",
        "Version=25.5.0\nascendhal_version=7.35.23\npackage_version=25.5.0\ncompatible_version_fw=[7.0.0,7.8.99]\n",
    )
    tree.write("/usr/local/Ascend/firmware/version.info", "Version=7.8.0.2.212\npackage_version=7.8.0.2.212\n")
    for number in range(count):
        tree.write(f"/dev/davinci{number}").chmod(0o660)
        tree.write(f"/sys/bus/pci/devices/0000:{0xC1 + number:02x}:00.0/vendor", "0x19e5\n")
        tree.write(f"/sys/bus/pci/devices/0000:{0xC1 + number:02x}:00.0/class", "0x120000\n")
    for shared in ("davinci_manager", "devmm_svm", "hisi_hdc"):
        tree.write(f"/dev/{shared}").chmod(0o660)
    tree.says("npu-smi", "info", smi_info([(name, "OK", "")] * count, per_npu=per_npu))
    pairs = per_npu > 1
    link = (lambda a, b: "SIO" if a // 2 == b // 2 else "HCCS_SW") if pairs else (lambda a, b: "HCCS")
    tree.says("npu-smi", "info -t topo", topology(count, link, "Phy-ID" if pairs else "NPU"))
    tree.says("npu-smi", "info -t board -i 0", "\tSoftware Version  : 25.5.0\n\tCompatibility     : OK\n")


def with_cann(tree: Tree, folder: str = CANN, version: str = "8.5.0", kernels: str = "ascend910b") -> None:
    tree.write(
        f"{folder}/aarch64-linux/ascend_toolkit_install.info", f"package_name=Ascend-cann-toolkit\nversion={version}\n"
    )
    tree.write(
        f"{folder}/runtime/version.info", f'Version={version}\nrequired_driver_ascendhal_version="[4.0.0,8.0.0]"\n'
    )
    tree.write(f"{folder}/lib64/libhccl.so")
    tree.write(f"{folder}/set_env.sh")
    tree.write(f"{folder}/opp/built-in/op_impl/ai_core/tbe/kernel/{kernels}/add/add.json")
    tree.environ |= {
        "ASCEND_HOME_PATH": folder,
        "ASCEND_TOOLKIT_HOME": folder,
        "ASCEND_OPP_PATH": f"{folder}/opp",
        "LD_LIBRARY_PATH": f"{folder}/lib64",
    }


def with_packages(tree: Tree, torch: str = "2.9.0+cpu", torch_npu: str = "2.9.0") -> None:
    tree.installs("torch", torch)
    tree.installs("torch_npu", torch_npu, f"Requires-Dist: torch=={'.'.join(torch_npu.split('.')[:3])}\n")
    tree.installs("transformers", "4.57.1")


def healthy_a2(tree: Tree) -> None:
    with_cards(tree)
    with_cann(tree)
    with_packages(tree)


def healthy_a3(tree: Tree) -> None:
    """A3, with CANN in its newer place."""
    with_cards(tree, "Ascend910", 16, per_npu=2)
    with_cann(tree, "/usr/local/Ascend/cann-9.0.0", "9.0.0", "ascend910_93")
    with_packages(tree, torch_npu="2.9.0.post2")
    tree.write("/proc/self/status", "Cpus_allowed_list:\t0-639\n")


def container(tree: Tree) -> None:
    """Two cards of a server, in a container."""
    healthy_a2(tree)
    tree.write("/.dockerenv")
    for number in range(2, 8):
        tree.remove(f"/dev/davinci{number}")
    tree.says("npu-smi", "info", smi_info([("910B3", "OK", "")] * 2))
    tree.says("npu-smi", "info -t topo", topology(2, lambda a, b: "HCCS"))
    tree.says("npu-list", "", "/dev/davinci0\n/dev/davinci1\n")
    tree.write("/proc/mounts", "shm /dev/shm tmpfs rw,nosuid,nodev,size=16777216k 0 0\n")
    tree.environ["ASCEND_VISIBLE_DEVICES"] = "0-1"


def gpu_box(tree: Tree) -> None:
    from npukit.machine.status import GPU_FIELDS, PROCESS_FIELDS

    tree.says(
        "nvidia-smi", "-L", "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-2)\n"
    )
    table = "0, NVIDIA A100-SXM4-80GB, 1024, 81920, 34, 61.20, 3, 00000000:07:00.0\n"
    tree.says("nvidia-smi", f"--query-gpu={GPU_FIELDS} --format=csv,noheader,nounits", table)
    tree.says(
        "nvidia-smi",
        f"--query-compute-apps={PROCESS_FIELDS} --format=csv,noheader",
        "00000000:07:00.0, 88, python, 900 MiB\n",
    )
    tree.installs("torch", "2.9.0")


def laptop(tree: Tree) -> None:
    tree.installs("torch", "2.9.0")


def no_driver(tree: Tree) -> None:
    healthy_a2(tree)
    for path in ("/etc/ascend_install.info", "/usr/local/Ascend/driver", "/usr/local/Ascend/firmware", "/dev"):
        tree.remove(path)
    tree.remove("/usr/local/bin/npu-smi")


def no_cann(tree: Tree) -> None:
    with_cards(tree)
    with_packages(tree)


def not_sourced(tree: Tree) -> None:
    healthy_a2(tree)
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH"):
        del tree.environ[name]


def other_torch(tree: Tree) -> None:
    healthy_a2(tree)
    tree.installs("torch", "2.8.0")


def old_cann(tree: Tree) -> None:
    healthy_a2(tree)
    with_cann(tree, version="8.2.RC1")


def no_kernels(tree: Tree) -> None:
    healthy_a2(tree)
    tree.remove(f"{CANN}/opp")


def other_kernels(tree: Tree) -> None:
    healthy_a2(tree)
    tree.remove(f"{CANN}/opp")
    with_cann(tree, kernels="ascend310p")


def no_permission(tree: Tree) -> None:
    healthy_a2(tree)
    tree.in_group = False


def busy(tree: Tree) -> None:
    healthy_a2(tree)
    chips = [("910B3", "OK", "59356/ 65536" if number == 3 else "") for number in range(8)]
    process = "| 3       0                 | 40911         | python3.11               | 56012                   |"
    tree.says("npu-smi", "info", smi_info(chips, process))


def unhealthy(tree: Tree) -> None:
    healthy_a2(tree)
    tree.says("npu-smi", "info", smi_info([("910B3", "Alarm" if number == 5 else "OK", "") for number in range(8)]))


def conflicting(tree: Tree) -> None:
    healthy_a2(tree)
    tree.environ |= {
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:128",
    }


def small_shm(tree: Tree) -> None:
    container(tree)
    tree.write("/proc/mounts", "shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0\n")


def container_without_driver(tree: Tree) -> None:
    """The cards' files are in the container, the driver is not."""
    container(tree)
    for path in ("/etc/ascend_install.info", "/usr/local/Ascend/driver", "/usr/local/Ascend/firmware"):
        tree.remove(path)
    for program in ("npu-smi", "npu-list"):
        tree.remove(f"/usr/local/bin/{program}")


def container_with_libraries(tree: Tree) -> None:
    """Of the driver only its libraries are mounted."""
    container(tree)
    for path in ("/etc/ascend_install.info", "/usr/local/Ascend/driver/version.info", "/usr/local/Ascend/firmware"):
        tree.remove(path)
    tree.write("/usr/local/Ascend/driver/lib64/driver/libascend_hal.so")


def stub_of_driver(tree: Tree) -> None:
    healthy_a2(tree)
    tree.write(f"{CANN}/runtime/lib64/stub/libascend_hal.so")
    tree.environ["LD_LIBRARY_PATH"] = f"{CANN}/runtime/lib64/stub:{CANN}/lib64"


def operators_of_another_cann(tree: Tree) -> None:
    healthy_a2(tree)
    environ = dict(tree.environ)
    with_cann(tree, "/usr/local/Ascend/cann-8.1.RC1", "8.1.RC1")
    tree.environ = environ | {"ASCEND_OPP_PATH": "/usr/local/Ascend/cann-8.1.RC1/opp"}


# Every machine with the first thing to mend on it.
MACHINES: dict[Callable[[Tree], None], str | None] = {
    healthy_a2: None,
    healthy_a3: None,
    container: None,
    gpu_box: "NPK901",
    laptop: "NPK901",
    no_driver: "NPK902",
    no_cann: "NPK910",
    not_sourced: "NPK911",
    other_torch: "NPK922",
    old_cann: "NPK923",
    no_kernels: "NPK912",
    other_kernels: "NPK913",
    no_permission: "NPK905",
    busy: "NPK908",
    unhealthy: "NPK907",
    conflicting: "NPK930",
    small_shm: "NPK940",
    container_without_driver: "NPK902",
    container_with_libraries: None,
    stub_of_driver: "NPK918",
    operators_of_another_cann: "NPK915",
}
