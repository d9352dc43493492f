"""Set the simulated NPU up on first use: the torch_npu wheel, the CANN home with its libraries, the operators.

Each is a folder in the user's cache, named by everything that decides about its content, so that finding the folder
is finding it ready: nothing is asked of the network or a compiler again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from npukit.cache import cache_folder, complete_or_absent, only_builder
from npukit.errors import NpukitError
from npukit.simulate import compile as compiling
from npukit.simulate import torch_npu as wheel
from npukit.simulate import versions
from npukit.simulate.machine import home as machine_home
from npukit.simulate.progress import say, step


@dataclass(frozen=True)
class Setup:
    """Where the parts of the simulated NPU are, or will be once they are built."""

    torch_version: str
    torch: Path
    cache: Path
    torch_npu: Path
    cann_headers: Path
    home: Path
    operators: Path

    @property
    def cann_version(self) -> str:
        return versions.target(self.torch_version).cann

    @property
    def operators_library(self) -> Path:
        return self.operators / compiling.OPERATORS

    @property
    def beside_cuda_library(self) -> Path | None:
        """What lets torch_npu load, where this torch is a CUDA build that it does not load beside."""
        library = self.operators / compiling.BESIDE_CUDA
        return library if library.exists() else None

    @property
    def ready(self) -> bool:
        return all(part.exists() for part in (self.torch_npu, self.home, self.operators))


def plan() -> Setup:
    """Where everything belongs for this torch, this Python and these sources. Imports no torch, builds nothing."""
    if sys.platform != "linux":
        raise NpukitError(f"The simulated NPU runs on Linux only, and this is {sys.platform}: use a Linux container.")
    torch_version, torch = _installed_torch()
    cache = cache_folder()
    key = f"{torch_version}-{sysconfig.get_config_var('SOABI')}"
    how = [Path(compiling.__file__), Path(machine_home.__file__)]
    cann_key = compiling.fingerprint([*compiling.cann_sources(), *how], compiling.C_FLAGS, compiling.SHARED)
    operators_how = (compiling.CXX_FLAGS, compiling.SHARED, compiling.as_torch_was_built(torch))
    beside_cuda = compiling.clashes_with_cuda(torch)
    operators_key = compiling.fingerprint(compiling.operator_sources(), *operators_how, beside_cuda)
    headers = versions.headers(torch_version)
    return Setup(
        torch_version=torch_version,
        torch=torch,
        cache=cache,
        torch_npu=cache / "torch_npu" / key,
        cann_headers=cache / "torch_npu" / (key if headers == torch_version else f"headers-{headers}"),
        home=cache / "cann" / f"{key}-{cann_key}",
        operators=cache / "operators" / f"{key}-{operators_key}",
    )


def _installed_torch() -> tuple[str, Path]:
    spec = importlib.util.find_spec("torch")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        command = f"{sys.executable} -m pip install torch=={versions.advised()}"
        raise NpukitError(f"{sys.executable} has no torch: run `{command}` first.")
    if importlib.util.find_spec("numpy") is None:
        raise NpukitError(f"torch_npu needs numpy: run `{sys.executable} -m pip install numpy` first.")
    return version, Path(next(iter(spec.submodule_search_locations)))


def ensure() -> Setup:
    """The simulated NPU, built if it is not yet."""
    setup = plan()
    versions.check(setup.torch_version)
    if not setup.ready:
        with only_builder(setup.cache, lambda: say("another process is setting up the simulated NPU; waiting for it.")):
            _build(setup)
    return setup


def _build(setup: Setup) -> None:
    compilers = compiling.find_compilers()
    compiling.python_headers()
    if not setup.torch_npu.exists():
        with step(f"Downloading torch_npu for torch {setup.torch_version}"), complete_or_absent(setup.torch_npu) as new:
            wheel.install(setup.torch_version, new)
    if not setup.home.exists() and not setup.cann_headers.exists():
        with step("Downloading newer headers of CANN"), complete_or_absent(setup.cann_headers) as new:
            wheel.install(versions.NEWER_HEADERS, new, "--python-version", versions.NEWER_HEADERS_PYTHON)
    if not setup.home.exists():
        with step("Compiling the simulated CANN runtime"), complete_or_absent(setup.home) as new:
            machine_home.write_home(new, setup.cann_version)
            (new / "lib64").mkdir()
            compiling.cann_libraries(compilers, setup.cann_headers / "torch_npu", new / "lib64")
    if not setup.operators.exists():
        with step("Compiling the operators (about a minute, once)"), complete_or_absent(setup.operators) as new:
            compiling.operators(compilers, setup.torch, setup.torch_npu / "torch_npu", setup.home / "lib64", new)
