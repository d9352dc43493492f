"""A shell of `npukit sim env`: for every command its simulated NPUs are the NPUs, and are called simulated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.simulate import environment

NPUKIT = [sys.executable, "-m", "npukit"]


@pytest.fixture(scope="module")
def shell() -> dict[str, str]:
    return environment(devices=2, card="910B1")


def succeed(shell: dict[str, str], *arguments: str) -> str:
    result = subprocess.run([*NPUKIT, *arguments], env=shell, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(
        "import json, torch\n"
        "from npukit.launch.devices import torch_device\n"
        "print(json.dumps([str(torch_device()), torch.accelerator.is_available()]))\n"
    )
    return path


@pytest.mark.parametrize(
    ("options", "device", "available"),
    [(["--device", "npu"], "npu:0", True), (["--device", "cpu"], "cpu", False)],
)
def test_run_gives_a_script_the_device_that_was_asked_for(
    shell: dict[str, str], script: Path, options: list[str], device: str, available: bool
) -> None:
    assert json.loads(succeed(shell, "run", *options, str(script))) == [device, available]


def test_the_cpu_is_the_cpu_for_libraries_that_import_torch_npu_by_themselves(
    shell: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from accelerate import Accelerator\n"
        "torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]).step()\n"
        "print(Accelerator().device)\n"
    )
    assert succeed(shell, "run", "--device", "cpu", str(script)) == "cpu\n"


def test_launch_starts_a_rank_on_each_of_them(shell: dict[str, str], script: Path) -> None:
    assert succeed(shell, "launch", "--dry-run", str(script)).startswith("# 2 ranks on 2 simulated NPUs (910B1)")


def test_doctor_sees_the_same_npus(shell: dict[str, str]) -> None:
    result = subprocess.run([*NPUKIT, "doctor", "--json"], env=shell, capture_output=True, text=True)
    diagnosis = json.loads(result.stdout)["result"]
    assert diagnosis["good"] and diagnosis["simulated"]
