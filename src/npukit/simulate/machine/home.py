"""Create the folder that ASCEND_HOME_PATH points to: the part of a CANN installation that programs read."""

from __future__ import annotations

import platform
from pathlib import Path

DRIVER_VERSION = "25.5.0"
COMPONENTS = ("runtime", "compiler", "opp", "toolkit", "hccl")
NVIDIA_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")


def write_home(home: Path, cann: str) -> None:
    """Fill `home`; the compiler adds the libraries. CANN's version is a real one, because programs check it."""
    arch = f"{platform.machine()}-linux"
    (home / arch).mkdir()
    (home / arch / "ascend_toolkit_install.info").write_text(
        f"package_name=Ascend-cann-toolkit\nversion={cann}\ninnerversion=simulated\n"
        f"compatible_version=[V100R001C20],[V100R001C29]\narch={platform.machine()}\nos=linux\n"
    )
    running = "\n".join(f"{name}_running_version=[{cann}:{cann}]" for name in COMPONENTS)
    (home / "version.cfg").write_text(f"# version: 1.0\n{running}\n")
    for component in COMPONENTS:
        (home / component).mkdir()
        (home / component / "version.info").write_text(f"Version={cann}\nversion_dir={cann}\n")
    (home / "set_env.sh").write_text(
        "# Simulated CANN. `npukit sim env` prints everything that a simulated process needs.\n"
        'export ASCEND_HOME_PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n'
        'export ASCEND_TOOLKIT_HOME="$ASCEND_HOME_PATH" ASCEND_OPP_PATH="$ASCEND_HOME_PATH/opp"\n'
        'export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n'
    )
    _hide_gpus(home / "lib64")
    (home / "bin").mkdir()
    for tool, module in (("npu-smi", "machine.npu_smi"), ("npu-list", "machine.npu_list")):
        _write_tool(home / "bin" / tool, module)
    _write_msprof(home)


def _hide_gpus(libraries: Path) -> None:
    """Put unloadable files in front of NVIDIA's driver, because torch_npu refuses to work if torch sees a GPU."""
    libraries.mkdir()
    for name in NVIDIA_DRIVER:
        (libraries / name).touch()


def _write_tool(script: Path, module: str) -> None:
    script.write_text(f'#!/bin/sh\nexec "$NPUKIT_SIM_PYTHON" -m npukit.simulate.{module} "$@"\n')
    script.chmod(0o755)


def _write_msprof(home: Path) -> None:
    """Write `msprof` at the depth at which torch_npu looks for its script, and a link to it on the path."""
    tools = home / "tools" / "profiler"
    (tools / "bin").mkdir(parents=True)
    _write_tool(tools / "bin" / "msprof", "profiler.msprof")
    (home / "bin" / "msprof").symlink_to("../tools/profiler/bin/msprof")
    script = tools / "profiler_tool" / "analysis" / "msprof" / "msprof.py"
    script.parent.mkdir(parents=True)
    script.write_text("from npukit.simulate.profiler.msprof import main\n\nmain()\n")
