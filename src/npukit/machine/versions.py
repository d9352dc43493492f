"""The versions that a bug report needs."""

from __future__ import annotations

import platform
from collections import Counter

from npukit import __version__
from npukit.machine.installed import canns, driver, packages
from npukit.machine.machine import Machine
from npukit.machine.status import status


def versions(machine: Machine | None = None) -> dict[str, str]:
    """The versions of all relevant software, without importing any of it; "none" for what is not installed.

    >>> versions()["torch"]
    '2.13.0'
    """
    machine = machine or Machine()
    installed = packages(machine)[0]
    cann, drives = next(iter(canns(machine)), None), driver(machine)
    return {
        "npukit": __version__,
        "Python": machine.python,
        "platform": platform.platform(),
        "torch": installed.pop("torch", "none"),
        "torch_npu": installed.pop("torch_npu", "none"),
        **installed,
        "CANN": cann.version if cann else "none",
        "driver": drives.version if drives else "none",
        "cards": _cards(machine),
    }


def _cards(machine: Machine) -> str:
    machine_status = status(machine)
    if machine_status.kind == "cpu":
        return "none"
    simulated = " (simulated)" if machine_status.simulated else ""
    counts = Counter(device.name for device in machine_status.devices)
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) + simulated
