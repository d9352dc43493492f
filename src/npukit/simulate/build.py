"""Set up the simulated NPU on first use: the torch_npu wheel, the CANN home with its libraries, and the operators.

Parts that npukit's wheel contains prebuilt are copied; the others are compiled. Each part is a folder in the user's
cache, named by a hash of everything that determines its content. If the folder exists, the part is ready, and neither
the network nor a compiler is needed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from npukit.cache import cache_folder, complete_or_absent, only_builder
from npukit.errors import NpukitError
from npukit.packages import require
from npukit.report.terminal import say
from npukit.simulate import compile as compiling
from npukit.simulate import prebuilt, versions
from npukit.simulate import torch_npu as wheel
from npukit.simulate.machine import home as machine_home
from npukit.simulate.progress import step


@dataclass(frozen=True)
class Setup:
    """The folders of the simulated NPU's parts, which may not have been built yet."""

    torch_version: str
    torch: Path
    cache: Path
    torch_npu: Path
    cann_headers: Path
    home: Path
    operators: Path
    prebuilt_runtime: Path
    prebuilt_operators: Path

    @property
    def cann_version(self) -> str:
        return versions.target(self.torch_version).cann

    @property
    def operators_library(self) -> Path:
        return self.operators / compiling.OPERATORS

    @property
    def beside_cuda_library(self) -> Path | None:
        """The library that lets torch_npu load next to a CUDA build of torch; None if this torch does not need it."""
        return self.operators / compiling.BESIDE_CUDA if compiling.clashes_with_cuda(self.torch) else None

    @property
    def ready(self) -> bool:
        return all(part.exists() for part in (self.torch_npu, self.home, self.operators))


def plan() -> Setup:
    """The folder of each part for this torch, this Python and these sources. Imports no torch and builds nothing."""
    if sys.platform != "linux":
        raise NpukitError(f"The simulated NPU runs on Linux only, and this is {sys.platform}: use a Linux container.")
    torch_version, torch = _installed_torch()
    cache = cache_folder()
    key = f"{torch_version}-{sysconfig.get_config_var('SOABI')}"
    cann_key, operators_key = compiling.cann_key(), compiling.operators_key(torch)
    beside_cuda = "-beside-cuda" if compiling.clashes_with_cuda(torch) else ""
    headers = versions.headers(torch_version)
    return Setup(
        torch_version=torch_version,
        torch=torch,
        cache=cache,
        torch_npu=cache / "torch_npu" / key,
        cann_headers=cache / "torch_npu" / (key if headers == torch_version else f"headers-{headers}"),
        home=cache / "cann" / f"{key}-{cann_key}",
        operators=cache / "operators" / f"{key}-{operators_key}{beside_cuda}",
        prebuilt_runtime=prebuilt.runtime(cann_key),
        prebuilt_operators=prebuilt.operators(torch_version, operators_key),
    )


def _installed_torch() -> tuple[str, Path]:
    spec = importlib.util.find_spec("torch")
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        command = f"{sys.executable} -m pip install 'npukit[sim]' torch=={versions.advised()}"
        raise NpukitError(f"{sys.executable} has no torch: run `{command}` first.")
    require("numpy", extra="sim")  # torch_npu imports it
    return version, Path(next(iter(spec.submodule_search_locations)))


def ensure() -> Setup:
    """The simulated NPU, built if necessary."""
    setup = plan()
    versions.check(setup.torch_version)
    if not setup.ready:
        with only_builder(setup.cache, lambda: say("another process is setting up the simulated NPU; waiting for it.")):
            _build(setup)
    return setup


def _build(setup: Setup) -> None:
    compiles_runtime = not setup.home.exists() and not setup.prebuilt_runtime.exists()
    compiles_operators = not setup.operators.exists() and not setup.prebuilt_operators.exists()
    if compiles_runtime or compiles_operators:
        compiling.find_compilers()
        compiling.python_headers()
    if not setup.torch_npu.exists():
        with step(f"Downloading torch_npu for torch {setup.torch_version}"), complete_or_absent(setup.torch_npu) as new:
            wheel.install(setup.torch_version, new)
    if compiles_runtime and not setup.cann_headers.exists():
        with step("Downloading newer headers of CANN"), complete_or_absent(setup.cann_headers) as new:
            wheel.install(versions.NEWER_HEADERS, new, "--python-version", versions.NEWER_HEADERS_PYTHON)
    if not setup.home.exists():
        with complete_or_absent(setup.home) as new:
            machine_home.write_home(new, setup.cann_version)
            _fill_runtime(setup, new / "lib64")
    if not setup.operators.exists():
        with complete_or_absent(setup.operators) as new:
            _fill_operators(setup, new)


def _fill_runtime(setup: Setup, folder: Path) -> None:
    if setup.prebuilt_runtime.exists():
        shutil.copytree(setup.prebuilt_runtime, folder, dirs_exist_ok=True)
    else:
        with step("Compiling the simulated CANN runtime"):
            compiling.cann_libraries(compiling.find_compilers(), setup.cann_headers / "torch_npu", folder)


def _fill_operators(setup: Setup, folder: Path) -> None:
    if setup.prebuilt_operators.exists():
        shutil.copytree(setup.prebuilt_operators, folder, dirs_exist_ok=True)
        return
    with step("Compiling the operators (about a minute, once)"):
        torch_npu = setup.torch_npu / "torch_npu"
        headers = compiling.Headers(setup.torch, torch_npu, compiling.python_headers())
        libraries = [setup.torch / "lib", torch_npu / "lib", setup.home / "lib64"]
        compiling.operators(compiling.find_compilers(), headers, libraries, folder)
        if setup.beside_cuda_library:
            compiling.beside_cuda(compiling.find_compilers(), headers, libraries, folder)
