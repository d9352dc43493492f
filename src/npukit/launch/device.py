"""Choose the device that something runs on. This is the one place that decides."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from pathlib import Path

from npukit.errors import NpukitError

DEVICE_FILES = Path("/dev")


class Device(str, Enum):
    """What a script can be run on."""

    npu = "npu"
    sim = "sim"
    cuda = "cuda"
    cpu = "cpu"
    auto = "auto"


def choose(wanted: Device) -> Device:
    """The device to use: the wanted one if it is there; for `auto` a real NPU, else CUDA, else the CPU.

    A simulated NPU is never chosen by itself: nobody should take its figures for a card's.
    """
    if wanted is Device.auto:
        return next((device for device in (Device.npu, Device.cuda) if is_there(device)), Device.cpu)
    if not is_there(wanted):
        advice = " use --device sim for a simulated one." if wanted is Device.npu else " use --device cpu or auto."
        raise NpukitError(f"There is no {wanted.value} device on this machine:{advice}")
    return wanted


def is_there(device: Device) -> bool:
    """Whether this machine has such a device. Torch is asked for CUDA only, and in a process of its own."""
    if device is Device.npu:
        return any(DEVICE_FILES.glob("davinci[0-9]*"))
    if device is Device.cuda:
        has_driver = any(DEVICE_FILES.glob("nvidia[0-9]*")) or (DEVICE_FILES / "kfd").exists()
        return has_driver and _torch_says("torch.cuda.is_available()")
    return True


def _torch_says(expression: str) -> bool:
    code = f"import sys, torch; sys.exit(not {expression})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
