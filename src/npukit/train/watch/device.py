"""Name, speed and memory of the device."""

from __future__ import annotations

import platform
import resource

import torch

from npukit.facts.peak_flops import peak_flops
from npukit.launch.abilities import abilities
from npukit.launch.devices import is_simulated

GIB = 2**30


def device_name(device: torch.device) -> str:
    """Its usual name, with "simulated" if it is.

    >>> device_name(torch.device("cpu"))
    'CPU (x86_64)'
    """
    if not abilities(device).own_memory:
        return f"CPU ({platform.machine()})"
    name = str(torch.get_device_module(device).get_device_name(device))
    return f"simulated {name}" if is_simulated() else name


def known_peak(device: torch.device) -> float | None:
    """Peak operations per second; None for a CPU, an unknown card or a simulated one."""
    return None if not abilities(device).own_memory or is_simulated() else peak_flops(device_name(device))


def peak_memory_gib(device: torch.device) -> float:
    """The peak memory of tensors on the device, or of the whole process on a CPU."""
    if not abilities(device).own_memory:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return float(torch.get_device_module(device).max_memory_allocated(device)) / GIB
