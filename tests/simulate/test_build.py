"""Set-up, with the real pip and real processes; only the wheel is a tiny one and the compilers are scripts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.report.unfinished import UNFINISHED
from npukit.simulate import build, environment, versions
from npukit.simulate import compile as compiling

TORCH = importlib.metadata.version("torch").split("+")[0]
REAL_COMPILERS = compiling.find_compilers()


def start_setup() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "npukit", "sim", "setup"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def compilations(world: Path) -> int:
    return len((world / "compiler.log").read_text().splitlines())


def assert_complete(setup: build.Setup) -> None:
    assert setup.ready
    assert (setup.torch_npu / "torch_npu" / "__init__.py").exists()
    assert (setup.home / "lib64" / "libascendcl.so").exists()
    assert setup.operators_library.exists()
    assert not [*setup.cache.glob(f"*/{UNFINISHED}*")]


def test_the_newest_post_release_is_installed_privately(small: Path) -> None:
    assert_complete(build.ensure())
    assert (build.plan().torch_npu / f"torch_npu-{TORCH}.post1.dist-info").exists()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("torch_npu")


def test_once_built_it_needs_neither_network_nor_compiler(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.ensure()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "no-compiler")
    monkeypatch.setenv("PIP_FIND_LINKS", str(small / "gone"))
    assert_complete(build.ensure())


def test_changed_c_sources_are_compiled_without_a_second_download(
    small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = build.ensure()
    capfd.readouterr()
    monkeypatch.setattr(compiling, "C_FLAGS", [*compiling.C_FLAGS, "-DCHANGED"])
    after = build.ensure()
    assert after.home != before.home
    assert_complete(after)
    assert "torch_npu" not in capfd.readouterr().err


def test_a_wheel_with_old_headers_is_compiled_with_newer_ones(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "OLD_HEADERS", frozenset({TORCH}))
    setup = build.ensure()
    assert setup.cann_headers != setup.torch_npu
    runtime = (small / "compiler.log").read_text().splitlines()[0]
    assert str(setup.cann_headers) in runtime and str(setup.torch_npu / "torch_npu") not in runtime


def test_beside_a_cuda_build_a_library_comes_first(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "clashes_with_cuda", lambda torch: False)
    assert build.ensure().beside_cuda_library is None
    monkeypatch.setattr(compiling, "clashes_with_cuda", lambda torch: True)
    library = build.ensure().beside_cuda_library
    assert library and environment()["NPUKIT_SIM_BESIDE_CUDA"] == str(library)


def test_two_that_start_together_build_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = start_setup(), start_setup()
    errors = [process.communicate()[1] for process in (first, second)]
    assert first.returncode == second.returncode == 0, errors
    assert sum("waiting for it" in error for error in errors) == 1
    assert_complete(build.plan())
    together = compilations(small)
    (small / "compiler.log").unlink()
    monkeypatch.setenv("NPUKIT_CACHE", str(small / "another cache"))
    build.ensure()
    assert compilations(small) == together


def test_killed_at_any_moment_it_leaves_nothing_broken(small: Path) -> None:
    moment = random.Random(2)
    for _ in range(8):
        process = start_setup()
        time.sleep(moment.uniform(0.2, 2.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start_setup()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert_complete(build.plan())


def test_a_failed_build_leaves_no_folder(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NpukitError, match="could not build libascendcl"):
        build.ensure()
    assert not build.plan().home.exists()
    assert not [*build.plan().cache.glob(f"*/{UNFINISHED}*")]


def test_no_compiler(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(small / "empty"))
    with pytest.raises(NpukitError, match="no C/C\\+\\+ compiler: install gcc"):
        build.ensure()


def test_no_torch(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    with pytest.raises(NpukitError, match=r"has no torch: run .* -m pip install .* torch=="):
        build.ensure()


@pytest.mark.parametrize("version", ["2.0.1", "2.99.0+cpu"])
def test_a_torch_that_it_was_not_tested_with(small: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    folder = small / "older" / f"torch-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    result = start_setup()
    _, output = result.communicate()
    assert result.returncode == 2
    assert version in output and all(tested in output for tested in versions.TESTED)
    assert len(output.strip().splitlines()) == 1
    assert not (small / "compiler.log").exists()


def test_no_network(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(NpukitError, match="package index does not answer"):
        build.ensure()


def test_not_linux(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NpukitError, match="Linux only, and this is darwin"):
        build.ensure()


def test_a_cache_that_cannot_be_written(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUKIT_CACHE", "/dev/null/cache")
    with pytest.raises(NpukitError, match=r"Cannot write to /dev/null/cache .* set NPUKIT_CACHE"):
        build.ensure()


def prebuild(monkeypatch: pytest.MonkeyPatch, folder: Path) -> build.Setup:
    """What an installed wheel has: libraries for this torch and this Python."""
    setup = build.plan()
    for part, file in ((setup.prebuilt_runtime, "libhccl.so"), (setup.prebuilt_operators, compiling.OPERATORS)):
        beside = folder / part.parent.name / part.name
        beside.mkdir(parents=True)
        (beside / file).write_text("prebuilt")
    (folder / "runtime" / setup.prebuilt_runtime.name / "libascendcl.so").write_text("prebuilt")
    real = build.plan

    def plan() -> build.Setup:
        plan_ = real()
        return replace(
            plan_,
            prebuilt_runtime=folder / "runtime" / plan_.prebuilt_runtime.name,
            prebuilt_operators=folder / "operators" / plan_.prebuilt_operators.name,
        )

    monkeypatch.setattr(build, "plan", plan)
    return plan()


def test_what_the_wheel_has_is_not_compiled(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prebuild(monkeypatch, small / "prebuilt")
    monkeypatch.setenv("CC", "no-compiler")
    monkeypatch.setenv("PATH", "")
    setup = build.ensure()
    assert_complete(setup)
    assert setup.operators_library.read_text() == "prebuilt"
    assert (setup.home / "lib64" / "libhccl.so").read_text() == "prebuilt"


def test_edited_sources_are_compiled_although_the_wheel_has_others(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prebuild(monkeypatch, small / "prebuilt")
    monkeypatch.setattr(compiling, "CXX_FLAGS", [*compiling.CXX_FLAGS, "-DCHANGED"])
    assert build.ensure().operators_library.read_text() == "compiled\n"


def test_the_standard_library_is_torchs_whatever_the_compiler_prefers(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    source = "#include <iostream>\nvoid speak(int number) { std::cerr << number; }\n"
    command = [*REAL_COMPILERS.cxx, "-static-libstdc++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run([*command, *compiling.standard_library(REAL_COMPILERS)], input=source, text=True, check=True)
    assert compiling.STANDARD_LIBRARY.encode() in library.read_bytes()


def test_a_simulated_machine_has_no_gpu(small: Path) -> None:
    driver = small / "driver" / "libcuda.so.1"
    driver.parent.mkdir()
    subprocess.run([*REAL_COMPILERS.c, "-shared", "-x", "c", "/dev/null", "-o", str(driver)], check=True)
    load = [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"]
    with_gpu = {"LD_LIBRARY_PATH": str(driver.parent)}
    assert subprocess.run(load, env=with_gpu).returncode == 0
    assert subprocess.run(load, env=environment(base=with_gpu), stderr=subprocess.DEVNULL).returncode == 1
