"""Build a wheel of npukit that brings the simulated NPU's libraries along, for this architecture or others.

    python scripts/make_wheels.py [--torch VERSION...] [--architectures aarch64 x86_64] [--output dist]

The runtime is compiled by zig (`pip install ziglang`), which links against glibc 2.28 whatever this machine has, once
for all versions of torch. The operators are compiled by g++ for this architecture and by Debian's cross compiler
(`apt-get install g++-x86-64-linux-gnu` or `g++-aarch64-linux-gnu`) for the other one, once for each torch and each
Python that is found on the path. Those for the other architecture are linked against empty libraries of torch's names,
so that no torch for it is needed.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from npukit.facts.versions import key
from npukit.simulate import compile as compiling
from npukit.simulate import other_torch, prebuilt, versions

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("aarch64", "x86_64")
NEWEST_SYMBOLS = {"GLIBC": "2.28", "GLIBCXX": "3.4.25", "CXXABI": "1.3.11"}  # of manylinux_2_28
OLDEST_SYMBOLS = {"aarch64": "GLIBC_2.17", "x86_64": "GLIBC_2.2.5"}
# What this machine's compiler would take from a newer glibc or libstdc++ than a user may have, in a way that works with
# theirs: headers of libstdc++ skip atomic operations by a variable of glibc 2.32, those of version 9 make streams by
# functions of that version, and those of version 11 throw, count exceptions and, in C++20, read streams by others.
PORTABLE = """
#include <cstdlib>
#include <new>
#include <sstream>
#define OWN __attribute__((visibility("hidden")))
extern "C" {
OWN char __libc_single_threaded = 0;
OWN void _ZSt28__throw_bad_array_new_lengthv() { abort(); }
__asm__(".symver old_dlopen, dlopen@OLDEST");
__asm__(".symver old_dlsym, dlsym@OLDEST");
void *old_dlopen(const char *, int);
void *old_dlsym(void *, const char *);
OWN void *dlopen(const char *file, int mode) { return old_dlopen(file, mode); }
OWN void *dlsym(void *library, const char *name) { return old_dlsym(library, name); }
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void *);
OWN void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void *pointer) {
    _ZNSt15__exception_ptr13exception_ptrD1Ev(pointer);
}
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void *, const void *);
OWN void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void *pointer) {
    void *kept;
    _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(&kept, pointer);
}
}
OWN std::string text_of(const std::stringbuf *)
    __asm__("_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string text_of(const std::stringbuf *stream) { return stream->str(); }
OWN void make(std::ostringstream *) __asm__("_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void make(std::ostringstream *stream) { new (stream) std::ostringstream(std::ios_base::out); }
OWN void make(std::stringstream *) __asm__("_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void make(std::stringstream *stream) { new (stream) std::stringstream(std::ios_base::in | std::ios_base::out); }
"""
WHERE = """
from npukit.simulate import build
setup = build.plan()
print(setup.torch, setup.torch_npu / "torch_npu", setup.torch_npu.exists(), sep="\\n")
"""


def pythons(wanted: list[str]) -> Iterator[tuple[str, Path]]:
    """Tag and headers of each Python of these versions that is on the path."""
    for version in wanted:
        if command := shutil.which(f"python{version}"):
            code = "import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_path('include'))"
            said = subprocess.run([command, "-c", code], capture_output=True, text=True).stdout.split()
            if len(said) == 2 and (Path(said[1]) / "Python.h").exists():
                yield said[0], Path(said[1])


def compilers(architecture: str, work: Path) -> compiling.Compilers:
    """What compiles for this architecture; g++ gets what keeps the result independent of this machine's glibc."""
    # Without the last option zig 0.17 runs out of memory where it counts the arguments of one of our libraries.
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{architecture}-linux-gnu.2.28", "-Wl,--hash-style=gnu"]
    cross = "" if platform.machine() == architecture else f"{architecture}-linux-gnu-"
    source, portable = work / "portable.cpp", work / f"portable-{architecture}.o"
    source.write_text(PORTABLE.replace("OLDEST", OLDEST_SYMBOLS[architecture]))
    subprocess.run([f"{cross}g++", "-std=c++17", "-O2", "-fPIC", "-c", source, "-o", portable], check=True)
    return compiling.Compilers(zig, [f"{cross}g++", "-Wl,--no-as-needed", str(portable)])


def empty_libraries(gcc: list[str], folder: Path) -> Path:
    """Libraries without content, to be named as needed."""
    folder.mkdir()
    for name in compiling.OPERATORS_NEED:
        library = folder / f"lib{name}.so"
        subprocess.run(
            [*gcc, "-shared", f"-Wl,-soname,{library.name}", "-o", library, "-x", "c", "/dev/null"], check=True
        )
    return folder


def packages(torch_version: str) -> tuple[Path, Path]:
    """Where torch and torch_npu of this version are installed, the simulated NPU set up."""
    python = Path(sys.executable)
    if torch_version != versions.installed():
        python = other_torch.environment_python(torch_version)
    for attempt in ("as it is", "after set-up"):
        torch, torch_npu, ready = subprocess.run(
            [python, "-c", WHERE], check=True, capture_output=True, text=True
        ).stdout.split("\n")[:3]
        if ready == "True":
            return Path(torch), Path(torch_npu)
        assert attempt == "as it is", f"torch_npu for {torch_version} is missing"
        subprocess.run([python, "-m", "npukit", "sim", "setup"], check=True)
    raise AssertionError


def check_symbols(library: Path) -> None:
    """A library may ask of glibc and libstdc++ only what manylinux_2_28 has."""
    said = subprocess.run(["nm", "-D", library], check=True, capture_output=True, text=True).stdout
    asked = re.findall(r" U (\S+?)@+(GLIBC|GLIBCXX|CXXABI)_([\d.]+)", said)
    newer = [
        f"{symbol} ({name}_{version})" for symbol, name, version in asked if key(version) > key(NEWEST_SYMBOLS[name])
    ]
    if newer:
        sys.exit(f"{library.name} needs what manylinux_2_28 does not have: {', '.join(newer)}.")


def build(architecture: str, torch_versions: list[str], work: Path) -> Path:
    """All libraries for one architecture, in the folders where npukit looks for them."""
    folder = work / architecture
    chosen = compilers(architecture, work)
    runtime = prebuilt.runtime(compiling.cann_key(), folder)
    runtime.mkdir(parents=True)
    compiling.cann_libraries(chosen, packages(versions.installed())[1], runtime)
    empty = empty_libraries(chosen.cxx[:1], work / f"empty-{architecture}")
    for torch_version in torch_versions:
        torch, torch_npu = packages(torch_version)
        libraries = [torch / "lib", torch_npu / "lib", runtime] if architecture == platform.machine() else [empty]
        for tag, include in pythons(versions.pythons(torch_version)):
            print(f"{architecture}: operators for torch {torch_version}, {tag}", flush=True)
            headers = compiling.Headers(torch, torch_npu, include)
            out = prebuilt.operators(torch_version, compiling.operators_key(torch), tag, folder)
            out.mkdir(parents=True)
            compiling.operators(chosen, headers, libraries, out)
            if compiling.would_clash_with_cuda(torch):
                compiling.beside_cuda(chosen, headers, libraries, out)
    for library in folder.rglob("*.so"):
        check_symbols(library)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", nargs="+", default=[versions.installed()], help="versions to build operators for")
    parser.add_argument("--architectures", nargs="+", default=[platform.machine()], choices=ARCHITECTURES)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for architecture in options.architectures:
            folder = build(architecture, options.torch, Path(work))
            variables = {"NPUKIT_PREBUILT": str(folder), "NPUKIT_PLATFORM": f"manylinux_2_28_{architecture}"}
            command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", options.output, ROOT]
            subprocess.run(command, check=True, env={**os.environ, **variables})
    for wheel in sorted(options.output.glob("npukit-*.whl")):
        print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
