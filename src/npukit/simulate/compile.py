"""Compile the simulated NPU's C and C++ sources."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.simulate.machine import home as machine_home
from npukit.simulate.versions import HEADERS

HERE = Path(__file__).resolve().parent
CANN = HERE / "cann"
ATEN = HERE / "aten"
BESIDE_CUDA_SOURCE = HERE / "beside_cuda" / "allocator_keys.cpp"
OPERATORS = "libnpusim_operators.so"
BESIDE_CUDA = "libnpusim_beside_cuda.so"
# gcc 14 rejects these; older compilers only warn, and nobody would see the warning.
AS_GCC_14 = [
    f"-Werror={warning}"
    for warning in ("implicit-function-declaration", "int-conversion", "incompatible-pointer-types")
]
C_FLAGS = ["-std=gnu11", "-O2", "-g1", "-fPIC", "-Wall", "-Wextra", *AS_GCC_14, "-pthread"]
# NDEBUG as in torch's own build, because some of its classes have different members without it.
CXX_FLAGS = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-pthread"]
SHARED = ["-shared", "-pthread", "-Wl,-rpath,$ORIGIN"]
OPERATORS_NEED = ["torch", "torch_cpu", "torch_python", "c10", "torch_npu", "ascendcl"]
LIBS = ["-lm", "-ldl", "-lrt"]
STANDARD_LIBRARY = "libstdc++.so.6"


@dataclass(frozen=True)
class Compilers:
    """The commands that compile C and C++."""

    c: list[str]
    cxx: list[str]


def find_compilers() -> Compilers:
    """$CC and $CXX, or else the compilers on the path."""
    return Compilers(_find("CC", ["gcc", "cc", "clang"]), _find("CXX", ["g++", "c++", "clang++"]))


def _find(variable: str, usual: list[str]) -> list[str]:
    for command in [os.environ[variable]] if os.environ.get(variable) else usual:
        words = shlex.split(command)
        if shutil.which(words[0]):
            return words
    raise NpukitError(
        "The simulated NPU is compiled on first use and there is no C/C++ compiler: "
        "install gcc and g++ (on Debian or Ubuntu: apt-get install g++), or set CC and CXX."
    )


def python_headers() -> Path:
    """The folder of Python.h."""
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").exists():
        raise NpukitError(
            f"The simulated NPU is compiled on first use and needs Python's headers, which are not in {folder}: "
            "install them (on Debian or Ubuntu: apt-get install python3-dev)."
        )
    return folder


def fingerprint(files: Iterable[Path], *more: object) -> str:
    """A short hash of these files and of everything else that determines the result."""
    digest = hashlib.sha256(repr(more).encode())
    for file in sorted(files):
        digest.update(f"{file.relative_to(HERE)}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def cann_key() -> str:
    """The key of the simulated CANN: its sources, how they are compiled, and the layout of its folder."""
    how = [Path(__file__).resolve(), Path(machine_home.__file__).resolve()]
    return fingerprint([*cann_sources(), *how], C_FLAGS, SHARED)


def operators_key(torch: Path) -> str:
    """The key of the operators for this torch: their sources, and how they are compiled."""
    return fingerprint(operator_sources(), CXX_FLAGS, SHARED, STANDARD_LIBRARY, as_torch_was_built(torch))


def cann_sources() -> list[Path]:
    """The sources of libascendcl, libhccl and the stubs."""
    return [*CANN.rglob("*.c"), *CANN.rglob("*.h")]


def operator_sources() -> list[Path]:
    """The sources of the operators."""
    return [*ATEN.glob("*.cpp"), *ATEN.glob("*.h"), CANN / "npusim.h", BESIDE_CUDA_SOURCE]


def _includes(*folders: Path) -> list[str]:
    return [word for folder in folders for word in ("-isystem", str(folder))]


def cann_libraries(compilers: Compilers, torch_npu: Path, out: Path) -> None:
    """Compile libascendcl.so, libhccl.so and the stubs with the CANN headers of the torch_npu wheel."""
    includes = ["-I", str(CANN), *_includes(*(torch_npu / folder for folder in HEADERS))]

    def build(name: str, sources: list[Path], *libraries: str) -> None:
        if sources:
            target = out / f"lib{name}.so"
            command = [*compilers.c, *C_FLAGS, *SHARED, f"-Wl,-soname,{target.name}", *includes]
            command += [*map(str, sorted(sources)), "-o", str(target), "-L", str(out), *libraries, *LIBS]
            _run(command, target.name)

    build("ascendcl", [*CANN.glob("runtime/*.c")])
    build("hccl", [*CANN.glob("hccl/*.c")], "-lascendcl")
    for name, functions_in in (("hcomm", "hccl"), ("msprofiler", "ascendcl")):
        build(name, [CANN / "elsewhere.c"], "-Wl,--no-as-needed", f"-l{functions_in}")
    for stub in CANN.glob("stubs/*.c"):
        build(stub.stem, [stub], "-lascendcl")


def clashes_with_cuda(torch: Path) -> bool:
    """Whether this torch is a CUDA build next to which torch_npu aborts; beside_cuda/ explains why."""
    return (torch / "lib/libc10_cuda.so").exists() and would_clash_with_cuda(torch)


def would_clash_with_cuda(torch: Path) -> bool:
    """Whether CUDA builds of this torch version have that problem."""
    registry = torch / "include/c10/core/AllocatorConfig.h"
    return registry.exists() and "registerDeviceConfigParserHook" in registry.read_text(encoding="utf-8")


def as_torch_was_built(torch: Path) -> list[str]:
    """The libstdc++ string ABI that this torch uses, which is the older one in many builds before 2.6."""
    settings = torch / "share/cmake/Torch/TorchConfig.cmake"
    text = settings.read_text(encoding="utf-8") if settings.exists() else ""
    return re.findall(r"-D_GLIBCXX_USE_CXX11_ABI=[01]", text)[:1]


@dataclass(frozen=True)
class Headers:
    """The packages and the folder whose headers the operators are compiled with."""

    torch: Path
    torch_npu: Path
    python: Path

    def flags(self) -> list[str]:
        api = self.torch / "include"
        includes = _includes(api, api / "torch/csrc/api/include", *(self.torch_npu / folder for folder in HEADERS))
        return [*CXX_FLAGS, *as_torch_was_built(self.torch), "-I", str(CANN), *includes, *_includes(self.python)]


def operators(compilers: Compilers, headers: Headers, libraries: list[Path], folder: Path) -> None:
    """Compile libnpusim_operators.so, as one translation unit because parsing torch's headers takes longest."""
    everything = "".join(f'#include "{source}"\n' for source in sorted(ATEN.glob("*.cpp")))
    command = [*compilers.cxx, *SHARED, f"-Wl,-soname,{OPERATORS}", *headers.flags(), "-x", "c++", "-"]
    command += ["-o", str(folder / OPERATORS), *(f"-L{library}" for library in libraries)]
    libs = [*(f"-l{library}" for library in OPERATORS_NEED), *standard_library(compilers), *LIBS]
    _run([*command, *libs], OPERATORS, everything)


def beside_cuda(compilers: Compilers, headers: Headers, libraries: list[Path], folder: Path) -> None:
    """Compile libnpusim_beside_cuda.so, for CUDA builds of torch that torch_npu does not load next to."""
    command = [*compilers.cxx, *SHARED, *headers.flags(), str(BESIDE_CUDA_SOURCE), "-o", str(folder / BESIDE_CUDA)]
    _run([*command, *(f"-L{library}" for library in libraries), "-lc10", *standard_library(compilers)], BESIDE_CUDA)


def standard_library(compilers: Compilers) -> list[str]:
    """Flags to link torch's C++ library: some compilers link their own, whose streams crash next to torch's."""
    asked = [*compilers.cxx, f"-print-file-name={STANDARD_LIBRARY}"]
    library = Path(subprocess.run(asked, capture_output=True, text=True).stdout.strip())
    return [f"-L{library.parent}", f"-l:{STANDARD_LIBRARY}"] if library.is_absolute() else []


def _run(command: list[str], what: str, source: str = "") -> None:
    result = subprocess.run(command, input=source, capture_output=True, text=True)
    if result.returncode:
        sentence = f"{command[0]} could not build {what}; its output:\n{result.stderr.strip()[-4000:]}"
        raise NpukitError(sentence, on_the_way=True)
