from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from npukit.doctor.devices import devices
from npukit.simulate import environment

NAMES = runpy.run_path(str(Path(__file__).with_name("machines.py")))


def on(name: str, root: Path):
    tree = NAMES["Tree"](root)
    NAMES[name](tree)
    return devices(tree.machine())


def npukit(*arguments: str, env: dict[str, str] | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npukit", *arguments]
    variables = {**(env or os.environ), "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, env=variables, input=text)


def test_npus_with_their_users_and_links(tmp_path: Path) -> None:
    found = on("busy", tmp_path)
    assert (found.kind, len(found.devices), found.simulated) == ("npu", 8, False)
    third = found.devices[3]
    assert (third.name, third.health, third.memory_used_mib, third.temperature_c) == ("910B3", "OK", 59356, 43)
    assert third.processes == ("python3.11 (pid 40911, 56012 MiB)",)
    assert found.topology.links[0][1] == "HCCS"


def test_npus_without_npu_smi_are_still_counted(tmp_path: Path) -> None:
    tree = NAMES["Tree"](tmp_path)
    NAMES["healthy_a2"](tree)
    tree.says("npu-smi", "info", "dcmi module initialize failed. ret is -8005\n")
    found = devices(tree.machine())
    assert (found.kind, len(found.devices)) == ("npu", 8)
    assert "-8005" in found.trouble


def test_gpus_and_cpus(tmp_path: Path) -> None:
    found = on("gpu_box", tmp_path / "one")
    (gpu,) = found.devices
    assert (found.kind, gpu.name, gpu.memory_total_mib, gpu.processes) == (
        "gpu",
        "NVIDIA A100-SXM4-80GB",
        81920,
        ("python (pid 88, 900 MiB)",),
    )
    found = on("laptop", tmp_path / "two")
    assert (found.kind, found.devices[0].name) == ("cpu", "Kunpeng-920, 2 cores")


def test_the_command_on_a_simulated_machine() -> None:
    simulated = environment(devices=2)
    shown = npukit("devices", env=simulated).stdout
    assert "NPUs (simulated)" in shown and "910B3" in shown and "HCCS" in shown
    told = json.loads(npukit("devices", "--json", env=simulated).stdout)
    assert (told["kind"], told["simulated"], len(told["devices"])) == ("npu", True, 2)


def test_doctor_on_a_simulated_machine_finds_it_good_and_says_so() -> None:
    result = npukit("doctor", env=environment(devices=2))
    assert result.returncode == 0, result.stdout
    assert "2 x 910B3 with 64 GiB, simulated" in result.stdout
    assert "This simulated machine can train on NPUs." in result.stdout
    assert "torch_npu finds CANN's libraries" in result.stdout


def test_watch_and_json_exclude_each_other() -> None:
    result = npukit("devices", "--watch", "--json")
    assert result.returncode == 2 and "choose one" in result.stderr


def test_explain_takes_codes_text_files_folders_and_pipes(tmp_path: Path) -> None:
    codes = npukit("explain", "507015", "EI0002").stdout
    assert "a kernel stopped on the card" in codes and "a rank waited in a collective" in codes
    assert "no-cuda" in npukit("explain", "Torch", "not", "compiled", "with", "CUDA", "enabled").stdout
    (tmp_path / "rank0.log").write_text("2026-11-14 10:30:00,000 EI0002: timed out\n")
    (tmp_path / "rank1.log").write_text("2026-11-14 10:05:00,000 x\nRuntimeError: NPU out of memory. Tried 2 GiB\n")
    folder = npukit("explain", str(tmp_path)).stdout
    assert folder.index("rank1.log:2") < folder.index("rank0.log:1: EI0002")
    assert npukit("explain", str(tmp_path / "rank0.log"), str(tmp_path / "rank1.log")).stdout == folder
    assert "ERR01002" in npukit("explain", text="[ERROR] ERR01002 OPS invalid type\n").stdout
    told = json.loads(npukit("explain", "--json", "-", text="NPU out of memory").stdout)
    assert told[0]["code"] == "out-of-memory"


def test_explain_says_when_it_knows_nothing(tmp_path: Path) -> None:
    unknown = npukit("explain", text="Traceback:\nZeroDivisionError: division by zero\n")
    assert unknown.returncode == 1 and "ZeroDivisionError: division by zero" in unknown.stdout
    missing = npukit("explain", "logs/none.log")
    assert missing.returncode == 2 and "There is no file logs/none.log" in missing.stderr
