from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

from npukit.machine.status import MachineStatus, status
from npukit.simulate import environment

NAMES = runpy.run_path(str(Path(__file__).with_name("machines.py")))


def on(name: str, root: Path) -> MachineStatus:
    tree = NAMES["Tree"](root)
    NAMES[name](tree)
    return status(tree.machine())


def npukit(*arguments: str, env: dict[str, str] | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "npukit", *arguments]
    variables = {**(env or os.environ), "COLUMNS": "160"}
    return subprocess.run(command, capture_output=True, text=True, env=variables, input=text)


def test_npus_with_their_users_and_links(tmp_path: Path) -> None:
    machine_status = on("busy", tmp_path)
    assert (machine_status.kind, len(machine_status.devices), machine_status.simulated) == ("npu", 8, False)
    third = machine_status.devices[3]
    assert (third.name, third.health, third.memory_used_mib, third.temperature_c) == ("910B3", "OK", 59356, 43)
    assert third.processes == ("python3.11 (pid 40911, 56012 MiB)",)
    assert machine_status.topology.links[0][1] == "HCCS"


def test_npus_without_npu_smi_are_still_counted(tmp_path: Path) -> None:
    tree = NAMES["Tree"](tmp_path)
    NAMES["healthy_a2"](tree)
    tree.says("npu-smi", "info", "dcmi module initialize failed. ret is -8005\n")
    machine_status = status(tree.machine())
    assert (machine_status.kind, len(machine_status.devices)) == ("npu", 8)
    assert "-8005" in machine_status.trouble


def test_gpus_and_cpus(tmp_path: Path) -> None:
    machine_status = on("gpu_box", tmp_path / "one")
    (gpu,) = machine_status.devices
    assert (machine_status.kind, gpu.name, gpu.memory_total_mib, gpu.processes) == (
        "gpu",
        "NVIDIA A100-SXM4-80GB",
        81920,
        ("python (pid 88, 900 MiB)",),
    )
    machine_status = on("laptop", tmp_path / "two")
    assert (machine_status.kind, machine_status.devices[0].name) == ("cpu", "Kunpeng-920, 2 cores")


def test_the_command_on_a_simulated_machine() -> None:
    simulated = environment(devices=2)
    shown = npukit("devices", env=simulated).stdout
    assert "NPUs (simulated)" in shown and "910B3" in shown and "HCCS" in shown
    result = json.loads(npukit("devices", "--json", env=simulated).stdout)["result"]
    assert (result["kind"], result["simulated"], len(result["devices"])) == ("npu", True, 2)


def test_watch_and_json_exclude_each_other() -> None:
    result = npukit("devices", "--watch", "--json")
    assert result.returncode == 2 and "choose one" in result.stderr
