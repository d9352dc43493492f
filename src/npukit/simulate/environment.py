"""The environment variables that give a process and its children simulated NPUs."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD

Compute = Literal["full", "shapes"]


def environment(
    devices: int = 1,
    card: str = DEFAULT_CARD,
    compute: Compute = "full",
    faults: Sequence[str] = (),
    trace: str | os.PathLike[str] | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The complete environment of a process with simulated NPUs, which are set up on first use.

    >>> subprocess.run([sys.executable, "train.py"], env=environment(devices=2))
    """
    from npukit.facts.cards import card as find_card
    from npukit.simulate import build, versions

    if devices < 1:
        raise NpukitError(f"There must be at least one simulated NPU, not {devices}.")
    chosen = find_card(card)
    setup = build.ensure()
    target = versions.target(setup.torch_version, chosen.name)
    base = os.environ if base is None else base
    settings = {
        "NPUKIT_SIM_DEVICES": str(devices),
        "NPUKIT_SIM_CARD": target.card,
        "NPUKIT_SIM_SOC": chosen.soc,
        "NPUKIT_SIM_MEMORY_MIB": str(chosen.memory_mib),
        "NPUKIT_SIM_CORES": f"{chosen.cube_cores},{chosen.vector_cores}",
        "NPUKIT_SIM_BF16": str(int(chosen.bf16)),
        "NPUKIT_SIM_CANN_VERSION": target.cann,
        "NPUKIT_SIM_LAZY_DEVICE": "1" if (setup.torch_npu / "torch_npu" / "acl_default.json").exists() else "",
        "NPUKIT_SIM_COMPUTE": compute,
        "NPUKIT_SIM_FAULTS": ";".join(faults),
        "NPUKIT_SIM_TRACE": str(Path(trace).absolute()) if trace else "",
        "NPUKIT_SIM_OPERATORS": str(setup.operators_library),
        "NPUKIT_SIM_BESIDE_CUDA": str(setup.beside_cuda_library or ""),
        "NPUKIT_SIM_PYTHON": sys.executable,
        # Operators run synchronously on the calling thread, so that errors are raised where they occur.
        "TASK_QUEUE_ENABLE": base.get("TASK_QUEUE_ENABLE", "0"),
        "ASCEND_HOME_PATH": str(setup.home),
        "ASCEND_TOOLKIT_HOME": str(setup.home),
        "ASCEND_OPP_PATH": str(setup.home / "opp"),
        "LD_LIBRARY_PATH": _prepend(setup.home / "lib64", base.get("LD_LIBRARY_PATH")),
        "PYTHONPATH": _prepend(setup.torch_npu, base.get("PYTHONPATH")),
        "PATH": _prepend(setup.home / "bin", base.get("PATH")),
    }
    return {**base, **{name: value for name, value in settings.items() if value}}


def _prepend(folder: Path, paths: str | None) -> str:
    others = [word for word in paths.split(os.pathsep) if word != str(folder)] if paths else []
    return os.pathsep.join([str(folder), *others])


def activate(
    devices: int = 1,
    card: str = DEFAULT_CARD,
    compute: Compute = "full",
    faults: Sequence[str] = (),
    trace: str | os.PathLike[str] | None = None,
) -> None:
    """Give this process and the children it starts simulated NPUs. Call this before torch is imported.

    >>> activate(devices=2)
    >>> import torch
    >>> torch.npu.device_count()
    2
    """
    if "torch" in sys.modules:
        raise NpukitError("npukit.simulate.activate() comes too late: call it before anything imports torch.")
    settings = environment(devices, card, compute, faults, trace)
    # The runtime loads this library when it is itself loaded, which would fail before torch: not in this process yet.
    beside_cuda = settings.pop("NPUKIT_SIM_BESIDE_CUDA", "")
    os.environ.update(settings, CUDA_VISIBLE_DEVICES="")  # LD_LIBRARY_PATH hides GPUs only at the start
    sys.path.insert(0, os.environ["PYTHONPATH"].split(os.pathsep)[0])
    # The dynamic linker read LD_LIBRARY_PATH when this process started. It finds loaded libraries by name.
    libraries = Path(os.environ["ASCEND_HOME_PATH"]) / "lib64"
    for library in sorted(libraries.glob("*.so"), key=lambda path: path.name != "libascendcl.so"):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    if beside_cuda:
        os.environ["NPUKIT_SIM_BESIDE_CUDA"] = beside_cuda
        _import_beside_cuda(beside_cuda)


def _import_beside_cuda(library: str) -> None:
    """Import torch, the library and torch_npu in this order. The runtime is loaded already and cannot do it."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch  # noqa: F401

    del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    ctypes.CDLL(library)
    importlib.import_module("torch_npu")
